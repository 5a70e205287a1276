"""Simulated migrations: a sample, the same story from the same seed, and known faults that are found."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "simulate.py"
SAMPLE = 30  # schedules
PAGE = PROGRAM.parents[2] / "docs/explanation/simulation-known-faults.md"
FOUND = re.findall(r"^\| `(\w+)`(?!.*not found)", PAGE.read_text(), re.MULTILINE)
# A rollback without the sealed checkpoint is withdrawn: what removes the checkpoint breaks no promise any more.
HIDDEN = ["pin_expires_by_own_clock", "sealed_checkpoint_is_pruned"]


def simulate(*flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(PROGRAM), *flags], capture_output=True, text=True, timeout=500)


def test_sample_of_schedules_keeps_every_invariant() -> None:
    """Each commit draws its own."""
    first = int(os.environ["MIDSTREAM_TEST_SEED"]) % 10**9
    done = simulate("--seeds", f"{first}:{first + SAMPLE}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{SAMPLE} schedules" in done.stdout


def test_schedules_that_broke_an_invariant_once() -> None:
    """Each finding has a test of its own too. Each commit draws a third, `make test-slow` repeats all."""
    done = simulate("--found", f"{os.environ['MIDSTREAM_TEST_SEED']}/3")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_all_schedules_that_broke_an_invariant_once() -> None:
    done = simulate("--found")
    assert done.returncode == 0, done.stdout + done.stderr


def test_same_seed_gives_the_same_story() -> None:
    """Also where each update and each poll is made that no other task sees."""

    def story(*flags: str) -> str:
        done = simulate("--seed", "104", *flags)
        assert done.returncode == 0, done.stdout + done.stderr
        return re.sub(r"/dev/shm/[\w-]+", "", done.stdout.partition("schedules in")[0])

    assert "$ midstream --migrate r --to two" in story()
    assert story() == story("--each-update")


@pytest.mark.drawn
@pytest.mark.parametrize("name", sorted(FOUND + HIDDEN))
def test_known_fault_is_found(name: str) -> None:
    done = simulate("--known", name, "--seconds", "20" if name in HIDDEN else "300", "--trials", "0")
    if name in HIDDEN:
        assert done.returncode == 0, done.stdout + done.stderr
        return
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search("BrokenError|EndlessWaitError", done.stdout)


@pytest.mark.drawn
def test_schedule_is_shrunk_and_replayed() -> None:
    """The printed command breaks the same invariant, with no more faults than the drawn schedule had."""
    name = "rollback_leaves_nothing_running"
    done = simulate("--known", name, "--trials", "12")
    drawn, _, rest = done.stdout.partition("\nshrunk: ")
    seed, flags = re.search(r'replay: make simulate SEED=(\d+) ARGS="(.*)"', rest).groups()  # type: ignore[union-attr]
    again = simulate("--seed", seed, "--trials", "0", *shlex.split(flags))
    assert again.returncode == done.returncode == 1, again.stdout + again.stderr
    assert broken(again.stdout) == broken(rest) == broken(drawn)
    assert rest.count("; call ") < drawn.count("; call ")


def broken(text: str) -> str:
    """Return the invariant that a printed story breaks, without its numbers."""
    return re.sub(r"\d+", "#", text[text.index("BrokenError") :].splitlines()[0])
