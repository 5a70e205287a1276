"""A run of torchtitan goes on in the engine, and from there in torchtitan again, on other numbers of processes."""

from __future__ import annotations

import json
import os
import random
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from midstream_engine.convert import main
from simulators.sshd import free_port
from support.trainers.trainer_processes import PROGRAMS, TITAN_PYTHON, needs_torchtitan

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    needs_torchtitan,
    # haliax 1.4 uses names that jax 0.10 deprecates.
    pytest.mark.filterwarnings("ignore:jax.experimental.shard_map is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:jax.core.is_constant_dim is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:jax.interpreters.pxla.thread_resources is deprecated:DeprecationWarning"),
]
SAVED, AFTER = 4, 20
BOUND = 1e-6  # relative, of a loss: float32 on a CPU
SETTINGS: dict[str, Any] = {
    "steps": 30, "optimizer": {"lr": 1e-2, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1},
    "lr_scheduler": {"warmup_steps": 3, "decay_type": "cosine", "min_lr_factor": 0.1},
}  # fmt: skip


def titan(directory: Path, ranks: int, **request: Any) -> list[float]:
    """Train with torchtitan as the request says; return the losses."""
    path = directory / f"request-{len(list(directory.glob('request-*')))}.json"
    path.write_text(json.dumps(SETTINGS | request))
    words = ["-m", "torch.distributed.run", "--nproc_per_node", str(ranks), "--master_port", str(free_port())]
    done = subprocess.run(
        [TITAN_PYTHON, "-W", "ignore", *words, str(PROGRAMS / "train_torchtitan.py"), str(path)],
        cwd=directory, capture_output=True, text=True, timeout=900, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return [float.fromhex(line.split()[1][5:]) for line in done.stdout.splitlines() if line.startswith("step=")]


@pytest.mark.parametrize(
    ("ranks", "later", "kind", "loading"),
    [
        (1, 2, {"llama_rope": True}, {}),
        (2, 1, {"fused_qkv": False}, {"fsdp": False}),
        (3, 2, {"tied": True}, {}),
        (4, 1, {}, {}),
    ],
)
def test_torchtitan_goes_on_here_and_back(
    ranks: int, later: int, kind: dict[str, Any], loading: dict[str, Any], tmp_path: Path
) -> None:
    # Imported with the marks' filters: haliax's import warns.
    from midstream_engine.interop.torch_dcp.importer import open_torch_dcp
    from midstream_engine.interop.torch_dcp.reader import DcpCheckpoint
    from support.imports import imported_runs

    draw = random.Random(ranks)
    batches = [[[draw.randrange(37) for _ in range(17)] for _ in range(12)] for _ in range(SAVED + AFTER)]
    stored = tmp_path / f"step-{SAVED}"
    given = {"save": str(stored), "save_at": SAVED, "config": str(tmp_path / "config.json")}
    theirs = titan(tmp_path, ranks, batches=batches, **given, **kind)[SAVED:]
    ours = imported_runs.continued(open_torch_dcp(str(tmp_path)), batches[SAVED:])
    np.testing.assert_allclose(ours, theirs, rtol=BOUND)
    assert main([str(tmp_path), str(tmp_path / "run")]) == 0
    assert main([str(tmp_path / "run"), str(tmp_path / "out"), "--to", "torch-dcp"]) == 0
    exported = tmp_path / "out" / f"step-{SAVED}"
    expected, found = DcpCheckpoint(str(stored)), DcpCheckpoint(str(exported))
    for name in expected.tensors:
        np.testing.assert_array_equal(found.read(name), expected.read(name), name)
    back = titan(tmp_path, later, batches=batches[SAVED:], load=str(exported), seed=5, **kind, **loading)
    np.testing.assert_allclose(back, ours, rtol=BOUND)
