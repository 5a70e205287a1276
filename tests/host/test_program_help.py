"""Help of a training program: it is executed in an empty directory, for a limited time, or not at all."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from midstream_core import records
from midstream_host.trainers import program_help
from midstream_host.trainers.program_help import read_help

PARSER = """
import argparse, os, sys
open("written", "w").close()
parser = argparse.ArgumentParser()
parser.add_argument("--out-dir", default="out", help="where it writes (default: out)")
print(os.environ["CUDA_VISIBLE_DEVICES"], os.environ["JAX_PLATFORMS"], os.listdir("."))
parser.parse_args()
"""
HANGS = """
import argparse, os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open({place!r}, "w").write(str(child.pid))
time.sleep(600)
"""


def test_help_is_printed_in_an_empty_directory(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PARSER)
    found = read_help(str(tmp_path), sys.executable, "train.py")
    assert found.problem == ""
    assert "--out-dir OUT_DIR" in found.text
    assert " cpu ['written']" in found.text.splitlines()[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.py"], "nothing is written beside the program"


def test_program_without_a_parser_is_not_executed(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    found = read_help(str(tmp_path), sys.executable, "train.py")
    assert found.problem == "train.py has no parser of flags, and might train instead"
    assert not (tmp_path / "ran").exists()


def test_program_that_does_not_end_is_killed_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_help, "TIME_LIMIT", 1.0)
    (tmp_path / "train.py").write_text(HANGS.format(place=str(tmp_path / "pid")))
    found = read_help(str(tmp_path), sys.executable, "train.py")
    assert found.problem == "it has not ended after 1 s, and was killed"
    child = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 10
    while (
        Path(f"/proc/{child}/stat").exists() and records.identify(child) is not None
    ) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert records.identify(child) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import argparse, nothing_of_this_name", "it ended with code 1: ModuleNotFoundError"),
        ("import argparse; import sys; sys.exit(3)", "it ended with code 3: it printed nothing"),
    ],
)
def test_program_that_fails_has_no_help(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(text)
    found = read_help(str(tmp_path), sys.executable, "train.py")
    assert found.text == ""
    assert words in found.problem


def test_missing_interpreter_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PARSER)
    assert "cannot be started: No such file" in read_help(str(tmp_path), "/none/python", "train.py").problem
