"""The page about a PyTorch loop: its blocks run from its text, in a fresh home, with torch."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.doc_pages import Block, blocks
from support.html_page import HtmlPage
from support.paths import REPOSITORY
from support.trainers.trainer_processes import PYTHON

pytestmark = pytest.mark.slow
PAGE = REPOSITORY / "docs/how-to/pytorch-loop.md"


class Home:
    """A home with a fleet of two hosts on this machine, and the directory of a loop."""

    def __init__(self, directory: Path) -> None:
        self.work = directory / "loop"
        self.work.mkdir()
        # The environment of the trainers' tests, in the place of the one that the page creates.
        (self.work / ".venv").symlink_to(Path(PYTHON).parents[1])
        fleet = directory / ".config/midstream/fleet.yaml"
        fleet.parent.mkdir(parents=True)
        hosts = "".join(f"  {name}: {{type: local, devices: 1, root: ~/{name}}}\n" for name in ("lab", "rented"))
        fleet.write_text(f"hosts:\n{hosts}")
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("MIDSTREAM_")}
        self._environment |= {"HOME": str(directory), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    def run(self, commands: str) -> str:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", commands], cwd=self.work, env=self._environment,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=900,
        )  # fmt: skip
        assert done.returncode == 0, f"{commands}\n{done.stdout[-4000:]}"
        return done.stdout


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    if not Path(PYTHON).exists():
        pytest.skip("no torch: make test-trainers, or MIDSTREAM_TRAINERS_PYTHON=PATH")
    made = Home(tmp_path)
    yield made
    made.run("midstream --stop loop || true")  # a test may have ended it


def commands_of_page() -> list[Block]:
    return [block for block in blocks(PAGE) if block.language == "sh" and Path(__file__).name in block.not_run]


def test_page_leads_from_a_loop_to_a_certificate(home: Home) -> None:
    [program] = [block for block in blocks(PAGE) if block.language == "python"]
    (home.work / "train.py").write_text(program.text + "\n")
    printed = [home.run(block.text) for block in commands_of_page()]
    assert len(printed) == 3
    [shown] = [block.text for block in blocks(PAGE) if block.language == "text"]
    for line in shown.splitlines()[1:]:
        for words in line.split("..."):
            assert words in printed[0], f"the page shows other output: {line}"
    assert "loop on lab, attempt 1: training" in printed[1]
    assert "certificate: valid" in printed[2]
    assert re.search(r"rehearsal: replay overlap: verified: \d+ losses of the same steps are equal", printed[2])
    page = HtmlPage((home.work / "loop.html").read_text())
    assert page.problems == []
    assert "Certificate: certified" in page.text


def test_loop_that_runs_leaves_only_its_batch_open(home: Home) -> None:
    """A loop that runs shows its command, checkpoints and metrics too."""
    [program] = [block for block in blocks(PAGE) if block.language == "python"]
    (home.work / "train.py").write_text(program.text + "\n")
    command = [str(home.work / ".venv/bin/python"), "train.py", "--out", "runs/a"]
    with subprocess.Popen(command, cwd=home.work) as loop:
        try:
            home.run("until ls runs/a/ckpt-*.pt; do sleep 0.2; done")
            printed = home.run("midstream --init-run . --yes")
            assert [line for line in printed.splitlines() if "not inferred" in line] == [
                "  not inferred  batch: the number of devices stays what it is; no flag divides it"
            ]
            home.run("sed -i 's/^trainer/id: loop\\ntrainer/' run.yaml; midstream --adopt lab:$PWD")
            home.run("until midstream --checkpoints loop | grep complete; do sleep 0.5; done")
        finally:
            loop.kill()
