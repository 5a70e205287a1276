"""A run that has trained and ended, with configuration, metrics, log and two checkpoints. No engine made it."""

from __future__ import annotations

import json
import random
from pathlib import Path

import yaml

from midstream_core import records
from support.checkpoints.trees import write_checkpoint
from support.paths import CONFIGS
from support.run_directory import RunDirectory, dead_process

CONFIG = CONFIGS / "gpt2_tiny.yaml"


def write_stopped_run(root: Path, run_id: str, host: str) -> None:
    """Write run ``run_id`` below ``root``: ``host`` has trained it for eight steps and stopped it."""
    run = RunDirectory(root, run_id)
    run.fence(1, host)
    run.lineage({"attempt": 1, "epoch": 1, "target": host})
    run.rows(1, *range(8))
    run.status(1, records.STOPPED, 8, dead_process())
    config = yaml.safe_load(CONFIG.read_text())
    Path(run.paths.config).write_text(yaml.safe_dump(config))
    run.log(
        1, "2026-01-01T00:00:00 resolved configuration:\n\n" + yaml.safe_dump(config) + "2026-01-01T00:00:01 step 1\n"
    )
    for step in (4, 8):
        write_checkpoint(Path(run.paths.checkpoint(f"step-{step}-a001")), random.Random(step))
        file = Path(run.paths.checkpoint(f"step-{step}-a001"), records.MANIFEST)
        file.write_text(json.dumps({**json.loads(file.read_text()), "run_id": run_id, "step": step}))
