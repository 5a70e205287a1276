"""Checkpoints of another trainer, as `--check RUN` reads them."""

from __future__ import annotations

import json
from pathlib import Path

from midstream.check.check_result import WARN
from midstream.check.trainer_advice import _stored
from midstream.remote.trainers import stored_state
from midstream.trainers.run_file_parser import parse_run_file
from midstream_engine import records

TEXT = """\
trainer: script
command: "{python} train.py --out {out}"
resume: "{python} train.py --out {out} --resume {checkpoint}"
checkpoints: {rule: glob, pattern: "ckpt-*.pt"}
metrics: {source: jsonl, path: "{out}/metrics.jsonl"}
"""


def test_reason_is_shown_while_no_checkpoint_is_complete(tmp_path: Path) -> None:
    run = parse_run_file(TEXT, tmp_path / "run.yaml").run
    paths = records.RunPaths(str(tmp_path), "r")
    out = Path(paths.dir) / "work" / "out"
    out.mkdir(parents=True)
    Path(paths.config).write_text(json.dumps(run.to_json()))
    [check] = _stored(run, stored_state.newest(str(tmp_path), "r", 1), 1)
    assert (check.name, check.state) == ("checkpoint", WARN)
    assert check.detail == f"{out} has no match of ckpt-*.pt yet"
    (out / "ckpt-25.pt").write_text("{}")  # no file of torch
    incomplete, check = _stored(run, stored_state.newest(str(tmp_path), "r", 1), 1)
    assert incomplete.name == "incomplete"
    assert incomplete.detail.startswith("ckpt-25.pt: ")
    assert check.detail == "none is complete yet"
