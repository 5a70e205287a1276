"""A run of MaxText goes on in the engine, and from there in MaxText again; so does a run of another trainer."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from midstream_engine.convert import main
from support.paths import FIXTURES
from support.trainers.trainer_processes import MAXTEXT_PYTHON, PROGRAMS, needs_maxtext

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    needs_maxtext,
    # haliax 1.4 uses names that jax 0.10 deprecates.
    pytest.mark.filterwarnings("ignore:jax.experimental.shard_map is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:jax.core.is_constant_dim is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:jax.interpreters.pxla.thread_resources is deprecated:DeprecationWarning"),
]
SAVED, AFTER, BATCH = 4, 20, 4
BOUND = 1e-6  # relative, of a loss: float32 on a CPU
TIED_BOUND = 1e-3  # MaxText rounds a tied head to bfloat16, also in float32
PROGRAM: dict[str, Any] = {
    "run_name": "r", "hardware": "cpu", "dataset_type": "synthetic", "async_checkpointing": "false",
    "attention": "dot_product", "enable_tensorboard": "false", "enable_goodput_recording": "false",
    "monitor_goodput": "false", "skip_jax_distributed_system": "true",
}  # fmt: skip
SHAPE: dict[str, Any] = {
    "base_emb_dim": 32, "base_num_query_heads": 4, "base_num_kv_heads": 2, "base_mlp_dim": 48, "head_dim": 8,
    "base_num_decoder_layers": 3, "vocab_size": 96, "max_target_length": 16, "dtype": "float32",
    "matmul_precision": "highest", "learning_rate": 1e-2, "learning_rate_schedule_steps": 30,
}  # fmt: skip


def maxtext(
    directory: Path, batches: list[Any], config: str, devices: int = 1, **settings: Any
) -> tuple[list[float], str]:
    """Train with MaxText in ``directory``; return the losses, and what it logged."""
    metrics = directory / "metrics.jsonl"
    given = {**PROGRAM, "base_output_directory": str(directory), "metrics_file": str(metrics), **settings}
    request = directory / "request.json"
    request.write_text(json.dumps({"config": config, "settings": given, "batches": batches}))
    done = subprocess.run(
        [MAXTEXT_PYTHON, str(PROGRAMS / "train_maxtext.py"), str(request)], cwd=directory, text=True, timeout=900,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "DECOUPLE_GCLOUD": "TRUE",
             "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]
    return [json.loads(row)["learning/loss"] for row in metrics.read_text().splitlines()], done.stdout


def base() -> str:
    """Return MaxText's own defaults."""
    words = "import importlib.util as u; print(u.find_spec('maxtext').submodule_search_locations[0])"
    return subprocess.check_output([MAXTEXT_PYTHON, "-c", words], text=True).strip() + "/configs/base.yml"


def drawn(number: int, vocabulary: int, length: int, rows: int) -> list[Any]:
    draw = random.Random(number)
    return [[[draw.randrange(vocabulary) for _ in range(length)] for _ in range(rows)] for _ in range(SAVED + AFTER)]


def resumed(directory: Path, exported: Path, batches: list[Any], steps: int) -> list[float]:
    """Return the losses of MaxText's updates after an exported checkpoint."""
    shutil.copytree(exported / "checkpoints", directory / "r" / "checkpoints")
    settings = {"steps": steps, "checkpoint_period": 1000}
    return maxtext(directory, batches, str(exported / "maxtext.yml"), **settings)[0]


@pytest.mark.parametrize(
    ("devices", "kind"),
    [
        (1, {"adamw_mask": "[scale$,embedding$]"}),
        (2, {"ici_fsdp_parallelism": 2, "per_device_batch_size": BATCH // 2, "rope_type": "llama3.1",
             "rope_use_scale": "true", "lr_schedule_type": "wsd", "wsd_decay_steps_fraction": 0.5}),
        (1, {"decoder_block": "qwen2", "scan_layers": "false", "logits_via_embedding": "true",
             "normalize_embedding_logits": "false", "z_loss_multiplier": 1e-3}),
    ],
)  # fmt: skip
def test_maxtext_goes_on_here_and_back(devices: int, kind: dict[str, Any], tmp_path: Path) -> None:
    # Imported with the marks' filters: haliax's import warns.
    from midstream_engine.interop.maxtext.importer import open_maxtext
    from midstream_engine.interop.maxtext.orbax import OrbaxCheckpoint
    from support.imports import imported_runs

    batches = drawn(devices, 96, 17, BATCH)
    settings = {**SHAPE, "per_device_batch_size": BATCH, "checkpoint_period": SAVED - 1, "steps": SAVED + AFTER, **kind}
    theirs, printed = maxtext(tmp_path, batches, base(), devices, **settings)
    log = tmp_path / "train.log"
    log.write_text(printed)
    stored = tmp_path / "r" / "checkpoints" / str(SAVED - 1)
    ours = imported_runs.continued(open_maxtext(str(stored), str(log)), batches[SAVED:])
    bound = TIED_BOUND if "logits_via_embedding" in kind else BOUND
    np.testing.assert_allclose(ours, theirs[SAVED:], rtol=bound)

    run, out, back = tmp_path / "run", tmp_path / "out", tmp_path / "back"
    assert main([str(stored), str(run), "--config", str(log)]) == 0
    assert main([str(run), str(out), "--to", "maxtext"]) == 0
    expected, found = (OrbaxCheckpoint(str(folder)).arrays for folder in (stored, out / "checkpoints" / str(SAVED - 1)))
    for name, array in found.items():
        if name in expected:
            assert array.read().tobytes() == expected[name].read().tobytes(), name
        else:  # MaxText had an array for each layer, and scans them now
            layers = [expected[name.replace("layers", f"layers_{layer}")].read() for layer in range(3)]
            np.testing.assert_array_equal(array.read(), np.stack(layers, 1), name)
    back.mkdir()
    again = resumed(back, out, batches[SAVED:], SAVED + AFTER)
    if devices == 1 and "scan_layers" not in kind:
        assert again == theirs[SAVED:]  # the same program on the same numbers
    else:
        np.testing.assert_allclose(again, theirs[SAVED:], rtol=bound)


def test_run_of_levanter_goes_on_in_maxtext(tmp_path: Path) -> None:
    """Its scores are scaled, and its norms do not decay: MaxText's qwen2 without biases, with adamw_mask."""
    from midstream_engine.interop.levanter.importer import open_levanter
    from support.imports import imported_runs

    source, run, out, back = FIXTURES / "levanter" / "llama", tmp_path / "run", tmp_path / "out", tmp_path / "back"
    adopted = open_levanter(str(source), without_data=True)
    batches = drawn(7, 64, adopted.mapping["model"]["seq_len"] + 1, 8)[:17]  # updates that are left
    assert main([str(source), str(run)]) == 0
    assert main([str(run), str(out), "--to", "maxtext"]) == 0
    adopted.mapping["data"]["next_token"] = True
    ours = imported_runs.continued(adopted, batches)
    back.mkdir()
    np.testing.assert_allclose(resumed(back, out, batches, adopted.step + len(batches)), ours, rtol=BOUND)
