"""Checkpoints of another trainer, as `--check RUN` reads them."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

from midstream.check.check_result import PASS, WARN
from midstream.check.trainer_advice import _stored
from midstream.fleet.fleet import LocalHostConfig
from midstream.hosts.local_host import LocalHost
from midstream.migrate.journal.plan import Change, TrainerPlan
from midstream.migrate.planning.trainer_checks import check_stored
from midstream.trainers.run_file_parser import parse_run_file
from midstream_core import records
from midstream_host.driver import recorded_checkpoints
from midstream_host.driver.recorded_checkpoints import TrainerCheckpoint
from midstream_host.trainers import stored_state
from midstream_host.trainers.programs import names_in
from support.migrations.sample_plan import PLAN, changed
from support.paths import FIXTURES

TEXT = """\
trainer: script
command: "{python} train.py --out {out}"
resume: "{python} train.py --out {out} --resume {checkpoint}"
checkpoints: {rule: glob, pattern: "ckpt-*.pt"}
metrics: {source: jsonl, path: "{out}/metrics.jsonl"}
"""


LEVANTER = """\
trainer: levanter
command: "{python} train.py --config_path train.yaml"
batch: {kept_by: trainer}
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
    assert check.detail == "none can be used yet"
    (out / "ckpt-25.pt").unlink()
    shutil.copy(FIXTURES / "trainers/huggingface/checkpoint-6/scheduler.pt", out / "ckpt-best.pt")
    unknown, check = _stored(run, stored_state.newest(str(tmp_path), "r", 1), 1)
    assert "ckpt-best.pt: it is complete, and nothing shows its step (hint: save the number of" in unknown.detail
    assert check.detail == "none can be used yet"


def test_preflight_counts_processes_and_not_devices(tmp_path: Path) -> None:
    """A program in jax has one random state, and one process on any number of devices."""
    root = Path(records.RunPaths(str(tmp_path), "r").dir)
    run = parse_run_file(LEVANTER, tmp_path / "run.yaml").run
    shutil.copytree(FIXTURES / "levanter/gpt2/step-3", root / "work/out/step-3")
    (root / "work/train.yaml").write_text("trainer: {checkpointer: {temporary_base_path: /tmp/soon}}\n")
    paths = records.RunPaths(str(tmp_path), "r")
    Path(paths.config).write_text(json.dumps(run.to_json()))
    files = tuple(str(each.relative_to(root / "work/out")) for each in (root / "work/out").rglob("*") if each.is_file())
    recorded_checkpoints.record(paths, run, TrainerCheckpoint(str(root / "work/out"), "step-3", 4, files), 1, 1, {}, 1)
    trainer = TrainerPlan("levanter", json.dumps(run.to_json()), (), ())
    plan = changed(replace(PLAN, trainer=trainer), changes=(Change("processes", "1", "1"),))
    host = LocalHost("here", LocalHostConfig(root=str(tmp_path)))
    found = {each.name: each for each in check_stored(host, plan)}
    assert (found["random state"].state, found["random state"].detail) == (PASS, "stored for every process")
    assert found["data order"].state == PASS
    assert "and /tmp/soon (temporary_base_path)" in found["checkpoints"].detail


def test_names_are_read_from_programs_and_command(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text("trainer = GRPOTrainer(model)  # buffer_size\n")
    (tmp_path / "peft.yaml").write_text("lora_alpha: 16\n# streaming: true\n")
    wanted = ["GRPOTrainer", "buffer_size", "lora_alpha", "streaming", "use_rslora", "schedulefree"]
    command = ["python", "src/train.py", "--use_rslora", "../outside.py"]
    (tmp_path.parent / "outside.py").write_text("schedulefree")
    assert names_in(str(tmp_path), command, wanted) == ["GRPOTrainer", "lora_alpha", "use_rslora"]
    assert names_in(str(tmp_path / "missing"), [], wanted) == []
