"""Run files that `--init-run` writes: what is inferred from which evidence, and what is named as missing."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from midstream.launch.flags_of_help import HelpFlag, flags_of, value_in, with_value
from midstream.launch.run_file_draft import Evidence, draft
from midstream.trainers.run_file_parser import parse_run_file
from midstream_host.driver.run_file import RunFile
from midstream_host.trainers.output_survey import MetricsFile, OutputFiles
from midstream_host.trainers.processes import TrainerDirectory, TrainingProcess

PYTHON = "/work/.venv/bin/python"
CLICK = """\
Usage: train.py [OPTIONS]

Options:
  --out-dir PATH          where it writes  [default: runs/x]
  --resume / --no-resume  continue
  -n, --max-steps INTEGER RANGE  [default: 300]
  --help                  Show this message and exit.
"""


def argparse_help() -> str:
    parser = argparse.ArgumentParser(prog="train.py", formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("-o", "--out", default="runs", help="where it writes")
    parser.add_argument("--resume-from", metavar="PATH", help="a checkpoint")
    parser.add_argument("--max_steps", type=int, default=5000, help="of the run, see --resume-from")
    parser.add_argument("--micro_batch_size", type=int, default=4)
    parser.add_argument("--grad_accum", type=int, default=2)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--kind", choices=("a", "b"), default="a")
    return parser.format_help()


def run_of(evidence: Evidence) -> RunFile:
    return parse_run_file(draft(evidence).text, Path("run.yaml")).run


def evidence_of(words: str, **more: object) -> Evidence:
    process = TrainingProcess(7, 1, 0, words.split(), PYTHON, "/work", [], {})
    directory = TrainerDirectory("/work", [process], ["model.py", "train.py"], ["torch"], None)
    return Evidence(directory, process, python=PYTHON, **more)  # pyright: ignore[reportArgumentType]


def test_flags_of_argparse() -> None:
    flags = flags_of(argparse_help())
    assert flags["out"] == HelpFlag("--out", True, "runs")
    assert flags["resume_from"].name == "--resume-from"
    assert flags["max_steps"] == HelpFlag("--max_steps", True, "5000")
    assert flags["compile"].takes_value is False
    assert flags["kind"] == HelpFlag("--kind", True, "")


def test_flags_of_click() -> None:
    flags = flags_of(CLICK)
    assert flags["out_dir"] == HelpFlag("--out-dir", True, "runs/x")
    assert flags["resume"].takes_value is False
    assert flags["max_steps"] == HelpFlag("--max-steps", True, "300")


def test_run_file_of_a_process_is_complete() -> None:
    output = OutputFiles(
        ["runs/a/ckpt-200.pt", "runs/a/ckpt-100.pt", "old/x-1.pt"], [MetricsFile("runs/a/log.jsonl", "jsonl", 1)]
    )
    evidence = evidence_of("python train.py --out runs/a --lr 1e-3", output=output, flags=flags_of(argparse_help()))
    run = run_of(evidence)
    assert run.command == ["{python}", "train.py", "--out", "{out}", "--lr", "1e-3"]
    assert run.resume == [*run.command, "--resume-from", "{checkpoint}"]
    assert (run.out, run.steps, run.environment.python) == ("runs/a", 5000, PYTHON)
    assert (run.checkpoints.rule, run.checkpoints.pattern) == ("glob", "ckpt-*.pt")
    assert (run.metrics.source, run.metrics.path, run.metrics.first_step) == ("jsonl", "{out}/log.jsonl", 1)
    result = draft(evidence)
    assert result.missing == [
        "batch: the number of devices stays what it is; write {per_device} and {accumulation} behind "
        "--micro_batch_size and --grad_accum"
    ]
    assert "steps: 5000, the default of --max_steps" in result.inferred
    assert f"environment.python: {PYTHON}" in result.inferred


def test_empty_directory_shows_no_trainer() -> None:
    result = draft(Evidence(TrainerDirectory("/empty", [], [], [], None)))
    assert result.inferred == []
    assert "program: /empty has no .py file, and no process runs in it" in result.missing


def test_process_that_was_resumed_starts_without_its_checkpoint() -> None:
    run = run_of(evidence_of("python train.py --resume_from=old/ckpt-1.pt --out out --max_steps 70"))
    assert run.command == ["{python}", "train.py", "--out", "{out}", "--max_steps", "70"]
    assert run.resume == [*run.command, "--resume_from", "{checkpoint}"]
    assert (run.out, run.steps) == ("out", 70)


def test_what_nothing_shows_is_named() -> None:
    directory = TrainerDirectory("/work", [], ["train.py"], ["torch"], None)
    result = draft(Evidence(directory, no_help="--yes lets it run"))
    named = {line.partition(":")[0] for line in result.missing}
    assert named == {"command", "resume", "steps", "batch", "checkpoints", "metrics", "environment"}
    assert "resume: the help was not read: --yes lets it run" in result.missing
    assert parse_run_file(result.text, Path("run.yaml")).run.trainer == "script"


@pytest.mark.parametrize("place", ["/elsewhere", "..", "."])
def test_output_outside_of_the_directory_is_not_taken(place: str) -> None:
    result = draft(evidence_of(f"python train.py --out {place}"))
    assert f"--out {place}" in result.lines[2]
    assert any(line.startswith("out: ") for line in result.missing)


def test_values_of_a_command_line() -> None:
    words = ["t.py", "--save-dir=a", "--x", "--steps", "7", "--resume"]
    assert value_in(words, ("save_dir",)) == ("--save-dir", "a")
    assert value_in(words, ("steps",)) == ("--steps", "7")
    assert value_in(words, ("resume", "x")) is None
    assert with_value(words, "--steps", None) == ["t.py", "--save-dir=a", "--x", "--resume"]
    assert with_value(words, "--save-dir", "{out}") == ["t.py", "--save-dir={out}", "--x", "--steps", "7", "--resume"]
