"""A small run of NeoX as a user has it: the ``load:`` directory, and the data that it trains on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import yaml

from support.imports import neox_data
from support.paths import FIXTURES

SOURCE = FIXTURES / "neox" / "pythia-fp32-z1-dp2"
STEP, BATCH, UPDATES = 3, 30, 20


def write_run(folder: Path) -> Path:
    """Write a ``load:`` directory of NeoX to ``folder``, with data; return it."""
    shutil.copytree(SOURCE, folder / "pythia")
    tokens = np.asarray(json.loads((SOURCE / "expected.json").read_text())["tokens"], np.int64).reshape(-1, 13)
    rows = np.zeros(((UPDATES - STEP) * BATCH, 13), np.int64)
    rows[: len(tokens)] = tokens
    (path,) = (folder / "pythia" / "global_step3" / "configs").iterdir()
    config = yaml.safe_load(path.read_text())
    config["data-path"] = neox_data.write(folder / "text", rows, UPDATES * BATCH)
    path.write_text(yaml.safe_dump(config))
    return folder / "pythia"


def expected_losses() -> dict[int, float]:
    """Return NeoX's own losses of the steps from `STEP` on."""
    return dict(enumerate(json.loads((SOURCE / "expected.json").read_text())["losses"], STEP))
