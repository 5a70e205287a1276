"""Levanter goes on with runs that were exported to it."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from midstream_engine.convert import main
from support.paths import FIXTURES
from support.trainers.trainer_processes import LEVANTER_PYTHON, PROGRAMS, needs_levanter

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    needs_levanter,
    # haliax 1.4 uses names that jax 0.10 deprecates.
    pytest.mark.filterwarnings("ignore:jax.experimental.shard_map is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:jax.core.is_constant_dim is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:jax.interpreters.pxla.thread_resources is deprecated:DeprecationWarning"),
]
UPDATES = 17  # that are left of the fixtures' runs
BOUND = 1e-6  # relative, of a loss: float32 on a CPU


def continued(folder: Path, tokens: Path) -> list[float]:
    """Return the losses of Levanter's updates on the batches of ``tokens``."""
    done = subprocess.run(
        [LEVANTER_PYTHON, "-W", "ignore", str(PROGRAMS / "continue_levanter.py"), str(folder), str(tokens)],
        cwd=folder, capture_output=True, text=True, timeout=900, env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return [float.fromhex(line[5:]) for line in done.stdout.splitlines() if line.startswith("loss=")]


@pytest.mark.parametrize(("name", "form"), [("llama", "levanter"), ("gpt2", "levanter-1-2")])
def test_levanter_goes_on_with_an_exported_run(name: str, form: str, tmp_path: Path) -> None:
    # Imported with the marks' filters: haliax's import warns.
    from midstream_engine.interop.levanter.importer import open_levanter
    from support.imports import imported_runs

    run, out, draw = tmp_path / "run", tmp_path / "out", random.Random(1)
    batches = [[[draw.randrange(64) for _ in range(16)] for _ in range(8)] for _ in range(UPDATES)]
    tokens = tmp_path / "tokens.json"
    tokens.write_text(json.dumps(batches))
    assert main([str(FIXTURES / "levanter" / name), str(run)]) == 0
    assert main([str(run), str(out), "--to", form]) == 0
    ours = imported_runs.continued(open_levanter(str(out)), batches)
    if form != "levanter":  # marin-levanter 0.2 reads the arrays of 1.2, and has other names in the configuration
        assert main([str(run), str(tmp_path / "newer"), "--to", "levanter"]) == 0
        shutil.copy(tmp_path / "newer" / "config.yaml", out)
    np.testing.assert_allclose(continued(out, tokens), ours, rtol=BOUND)
