"""Runs that Levanter trained, continued by the engine on some of this process's devices.

The references were made with tests/fixtures/levanter/generate_curves.py, by Levanter's own program.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from midstream_engine.checkpoint.loading.checkpoint_records import read_train
from midstream_engine.checkpoint.loading.restore import restore_checkpoint
from midstream_engine.computation.programs import compile_step
from midstream_engine.computation.setup import prepare
from midstream_engine.computation.train_state import TrainState
from midstream_engine.config.load import load_config
from midstream_engine.convert import main as convert
from midstream_engine.runtime.mesh import place
from support.paths import FIXTURES

FOLDER = FIXTURES / "levanter"
CURVES = FOLDER / "curves"
SAVED = 11  # updates done in the checkpoints
DEVICES = (1, 2, 4)
# Largest relative difference of a loss from Levanter's that is accepted; docs/explanation/parity.md has the reasons.
BANDS = {"float32": 1e-6, "mixed": 5e-3, "bfloat16": 5e-3}
HEADER = [
    "| release | model | precision | 1 device | 2 devices | 4 devices | mean | Levanter, 2 | Levanter, 4 | band |",
    "|---|---|---|---:|---:|---:|---:|---:|---:|---:|",
]


@dataclass(frozen=True)
class Curve:
    """Losses and learning rates of the updates after the checkpoint."""

    losses: list[float]
    learning_rates: list[float]

    def differences(self, reference: list[float]) -> np.ndarray:
        """Return the relative difference of each loss from ``reference``; float64 [updates]."""
        return np.array(self.losses) / np.array(reference) - 1

    def difference(self, reference: list[float]) -> float:
        """Return the largest of them, without its sign."""
        return float(np.abs(self.differences(reference)).max())


@dataclass(frozen=True)
class Reference:
    """Losses that Levanter wrote: on one device, and by number of devices where it resumed the checkpoint itself."""

    curve: Curve
    resumed: dict[int, list[float]]


def references() -> list[str]:
    """Return the names of all reference runs: release, model and precision."""
    return sorted(path.name for path in CURVES.iterdir())


def reference(name: str) -> Reference:
    """Return what Levanter wrote of the run ``name`` after its checkpoint."""
    found: dict[str, Any] = json.loads((CURVES / name / "curve.json").read_text())
    first = found["steps"].index(SAVED)
    curve = Curve(found["losses"][first:], found["learning_rates"][first:])
    return Reference(curve, {int(devices): losses for devices, losses in found["resumed"].items()})


def imported(name: str, work: Path) -> Path:
    """Import the checkpoint of the run ``name`` with its data, as a user does; return the directory."""
    source, target = work / name, work / f"{name}-imported"
    source.mkdir(parents=True)
    with tarfile.open(CURVES / name / "step-10.tar.gz") as archive:
        archive.extractall(source, filter="data")
    (source / "config.yaml").write_bytes((CURVES / name / "config.yaml").read_bytes())
    caches = [flag for cache in ("a", "b") for flag in ("--data", str(FOLDER / "data" / cache))]
    assert convert([str(source), str(target), "--without-reference-losses", *caches]) == 0
    return target


class Continuation:
    """An imported run on the first ``devices`` devices of this process, with FSDP over all of them."""

    def __init__(self, directory: Path, devices: int) -> None:
        config = load_config(["--config_path", str(directory / "train.yaml")]).config
        checkpoint = next((directory / "checkpoints").iterdir())
        state = read_train(str(checkpoint))["state"]
        self._checkpoint, self._updates = str(checkpoint), range(state["step"], config.trainer.num_train_steps)
        self._setup = prepare(config, str(directory), state["data_digest"], jax.devices()[:devices], step=state["step"])
        self._step = compile_step(self._setup)

    def train(self, fault: Callable[[TrainState], TrainState] | None = None, late: int = 0) -> Curve:
        """Train to the run's end from the checkpoint.

        Args:
            fault: Changes the restored state, to see what difference that makes.
            late: Number of batches that are skipped, for the same reason.
        """
        setup = self._setup
        state = restore_checkpoint(self._checkpoint, setup.template, setup.shardings).tree
        state = state if fault is None else fault(state)
        losses, rates = [], []
        for number in self._updates:
            batch = setup.batches.batch(number + late)
            update = place(np.array(number, np.int32), setup.layout.replicated())
            state, result = self._step(state, update, setup.cut.put(batch.tokens), setup.cut.put(batch.loss_mask))
            losses.append(float(result.loss))
            rates.append(float(result.learning_rate))
        return Curve(losses, rates)
