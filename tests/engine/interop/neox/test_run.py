"""Import of a GPT-NeoX ``load:`` directory as a run of a host.

That the run continues is tested in integration/migration/test_import_run.py.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from midstream_core import records
from midstream_engine.checkpoint.loading.verify import verify_checkpoint
from midstream_engine.convert import main
from support.imports import neox_data
from support.paths import FIXTURES

pytestmark = [
    # haliax 1.4 uses names that jax 0.10 deprecates.
    pytest.mark.filterwarnings("ignore:jax.core.is_constant_dim is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:jax.interpreters.pxla.thread_resources is deprecated:DeprecationWarning"),
]
SOURCE = FIXTURES / "neox" / "pythia-fp32-z1-dp2"
STEP, BATCH, UPDATES = 3, 30, 20


def test_checkpoint_becomes_a_stopped_run_with_its_data(tmp_path: Path) -> None:
    tokens = np.asarray(json.loads((SOURCE / "expected.json").read_text())["tokens"], np.int64).reshape(-1, 13)
    rows = np.zeros(((UPDATES - STEP) * BATCH, 13), np.int64)
    rows[: len(tokens)] = tokens
    prefix = neox_data.write(tmp_path / "text", rows, UPDATES * BATCH)
    root = tmp_path / "root"
    arguments = [SOURCE, tmp_path / "building", "--data", prefix, "--run-id", "r", "--root", root]
    assert main([str(argument) for argument in arguments]) == 0
    assert not (tmp_path / "building").exists()
    paths = records.RunPaths(str(root), "r")
    status = records.Status.read(paths.attempt(1).status())
    assert (status.state, status.step) == (records.STOPPED, STEP)
    assert [path.name for path in (root / "data").iterdir()] == [status.data_digest]
    assert status.checkpoint is not None
    checkpoint = paths.checkpoint(status.checkpoint)
    assert verify_checkpoint(checkpoint).sound
    train = json.loads(Path(checkpoint, records.TRAIN).read_text())
    assert records.data_digests(train) == [status.data_digest]
    assert len(train["reference_losses"]["losses"]) == 8
