"""Imported runs train on as Levanter did: 30 updates on 1, 2 and 4 devices, with its own data, within stated bands.

The references were made by Levanter's own program: tests/fixtures/levanter/generate_curves.py.
"""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from midstream_core import records
from midstream_engine.computation.train_state import TrainState
from midstream_engine.optim import stored_dtypes
from support.engines.engine_runs import environment
from support.imports import levanter_curves
from support.imports.levanter_curves import BANDS, DEVICES, Continuation, Curve
from support.paths import REPOSITORY

pytestmark = [
    # haliax 1.4 uses names that jax 0.10 deprecates.
    pytest.mark.filterwarnings("ignore:jax.core.is_constant_dim is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:jax.interpreters.pxla.thread_resources is deprecated:DeprecationWarning"),
]
ULP = 2.0**-22  # of learning rates, twice the last digit of float32: the compilers differ
REFERENCES = levanter_curves.references()
# Each number of devices, model, precision and release at least once; the others are slow.
QUICK = {
    ("1.2-gpt2-float32", 4), ("0.2-llama-float32", 2), ("0.2-gpt2-mixed", 4), ("1.2-gpt2-bfloat16", 1),
    ("0.2-llama-bfloat16", 2),
}  # fmt: skip
CASES = [
    pytest.param(name, devices, marks=() if (name, devices) in QUICK else pytest.mark.slow)
    for name in REFERENCES
    for devices in DEVICES
]


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Import a reference run, once."""
    return functools.cache(lambda name: levanter_curves.imported(name, tmp_path_factory.mktemp("curves")))


@pytest.fixture(scope="module")
def continuation(imported: Callable[[str], Path]) -> Callable[[str, int], Continuation]:
    """Compile the update of a reference run for a number of devices, once."""
    return functools.cache(lambda name, devices: Continuation(imported(name), devices))


def band(name: str) -> float:
    return BANDS[name.rsplit("-", 1)[1]]


@pytest.mark.drawn
@pytest.mark.parametrize(("name", "devices"), CASES)
def test_thirty_updates_have_levanters_losses(
    name: str, devices: int, continuation: Callable[[str, int], Continuation]
) -> None:
    curve, reference = continuation(name, devices).train(), levanter_curves.reference(name)
    assert len(curve.losses) == 30
    rates = np.array(curve.learning_rates)
    if name.startswith("0.2") and name.endswith("bfloat16"):  # this release rounds them to the type of the gradients
        rates = rates.astype(jnp.bfloat16).astype(float)
    np.testing.assert_allclose(rates, reference.curve.learning_rates, rtol=ULP)
    assert curve.difference(reference.curve.losses) < band(name)
    assert curve.difference(reference.resumed[devices]) < band(name)


@pytest.mark.parametrize("name", REFERENCES)
def test_levanter_itself_keeps_the_bands(name: str) -> None:
    """Bands narrower than Levanter's own difference between numbers of devices would mean nothing."""
    reference = levanter_curves.reference(name)
    assert reference.resumed[1] == reference.curve.losses
    assert max(reference.curve.difference(losses) for losses in reference.resumed.values()) < band(name)


@pytest.mark.parametrize("name", ["1.2-gpt2-bfloat16", pytest.param("0.2-llama-float32", marks=pytest.mark.slow)])
def test_bands_exclude_faults_of_an_import(name: str, continuation: Callable[[str, int], Continuation]) -> None:
    """Moments that are lost, and a batch that is skipped."""

    def without_moments(state: TrainState) -> TrainState:
        zeros = jax.tree.map(lambda leaf: leaf * 0 if leaf.ndim else leaf, state.optimizer)
        return replace(state, optimizer=zeros)

    run, losses = continuation(name, 1), levanter_curves.reference(name).curve.losses
    assert run.train(without_moments).difference(losses) > band(name)
    assert run.train(late=1).difference(losses) > band(name)


@pytest.mark.slow
def test_rounded_decay_explains_the_mean_in_bfloat16(
    imported: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With optax's own arithmetic, in which 0.95 times a bfloat16 moment is rounded, the losses are not above its."""
    name = "1.2-gpt2-bfloat16"
    losses = levanter_curves.reference(name).curve.losses
    ours = Continuation(imported(name), 1).train().differences(losses).mean()
    monkeypatch.setattr(stored_dtypes, "widened", lambda tree: tree)
    optax = Continuation(imported(name), 1).train().differences(losses).mean()
    assert ours > 1e-4
    assert abs(optax) < 5e-5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["0.2-gpt2-float32", "1.2-gpt2-bfloat16"])
def test_program_writes_levanters_curve(name: str, imported: Callable[[str], Path], tmp_path: Path) -> None:
    """The engine as a user starts it, on four devices; its metrics file has the losses."""
    command = [sys.executable, "-m", "midstream_engine.train", "--config_path", str(imported(name) / "train.yaml")]
    done = subprocess.run(
        [*command, "--trainer.id", "curve"], env=environment(tmp_path, 4), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    rows = records.parse_metrics(
        Path(records.RunPaths(str(tmp_path), "curve").attempt(1).metrics).read_text().split("\n")
    )
    curve = Curve([row["train/loss"] for row in rows], [row["optim/learning_rate"] for row in rows])
    reference = levanter_curves.reference(name).curve
    assert [row["global_step"] for row in rows] == list(range(levanter_curves.SAVED, 41))
    np.testing.assert_allclose(curve.learning_rates, reference.learning_rates, rtol=ULP)
    assert curve.difference(reference.losses) < band(name)


def test_page_has_a_row_for_each_reference() -> None:
    """With numbers within the bands; benchmarks/parity.py makes the rows."""
    page = (REPOSITORY / "docs" / "explanation" / "parity.md").read_text()
    assert "\n".join(levanter_curves.HEADER) in page
    found = re.findall(r"^\| (\d\.\d) \| (gpt2|llama) \| (\w+) \| (.+) \|$", page, re.MULTILINE)
    assert ["-".join(row[:3]) for row in found] == REFERENCES
    for *_, precision, numbers in found:
        *measured, stated = [float(cell) for cell in numbers.split(" | ")]
        assert stated == BANDS[precision]
        assert max(measured) < stated
