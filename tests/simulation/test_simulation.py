"""Simulated migrations: a sample, the same story from the same seed, and known faults that are found."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "simulate.py"
SAMPLE = 30  # schedules
FAULTS = re.findall(r"^@known\ndef (\w+)", (PROGRAM.parent / "known_faults.py").read_text(), re.MULTILINE)


def simulate(*flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(PROGRAM), *flags], capture_output=True, text=True, timeout=500)


def test_sample_of_schedules_keeps_every_invariant() -> None:
    """Each commit draws its own."""
    first = int(os.environ["MIDSTREAM_TEST_SEED"]) % 10**9
    done = simulate("--seeds", f"{first}:{first + SAMPLE}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{SAMPLE} schedules" in done.stdout


def test_schedules_that_broke_an_invariant_once() -> None:
    """Each finding has a test of its own too."""
    done = simulate("--found")
    assert done.returncode == 0, done.stdout + done.stderr


def test_same_seed_gives_the_same_story() -> None:
    def story() -> str:
        done = simulate("--seed", "104")
        assert done.returncode == 0, done.stdout + done.stderr
        return re.sub(r"/dev/shm/[\w-]+", "", done.stdout.partition("schedules in")[0])

    assert "$ midstream --migrate r --to two" in story()
    assert story() == story()


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_known_fault_is_found(name: str) -> None:
    done = simulate("--known", name, "--seeds", "0:2000", "--seconds", "300")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "BrokenError" in done.stdout
