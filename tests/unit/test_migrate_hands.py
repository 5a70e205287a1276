"""One migration at a time has a run in its hands: no other one gives orders, moves the fence or starts an engine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from midstream.remote.runs import attempts, ownership, run_state
from midstream_engine import records
from support.run_directory import RunDirectory, dead_process

STOP = {"action": records.STOP, "epoch": 2, "owner": "there"}


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tmp_path)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = RunDirectory(tmp_path)
    run.fence(1)
    return run


def take(root: str, migration: str, epoch: int = 2, seconds: float = 60.0) -> dict[str, Any]:
    return ownership.acquire(root, "run", migration, epoch, f"target of {migration}", seconds)


def test_of_many_who_take_a_run_one_has_it(root: str, run: RunDirectory):
    together = threading.Barrier(8)

    def one(number: int) -> bool:
        together.wait()
        try:
            take(root, f"m{number}")
        except run_state.Refused:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(one, range(8))) == 1


def test_who_has_it_may_take_it_again_and_let_it_go(root: str, run: RunDirectory):
    assert take(root, "a")["epoch"] == 1
    take(root, "a")
    ownership.release(root, "run", "b")
    with pytest.raises(run_state.Refused, match="by migration a"):
        take(root, "b")
    ownership.release(root, "run", "a")
    take(root, "b")
    mover = ownership.migration_lock(root, "run")
    assert mover is not None
    assert mover["migration"] == "b"


def test_a_run_that_was_left_in_hand_may_be_taken_when_its_time_is_over(root: str, run: RunDirectory):
    take(root, "a", seconds=-1.0)
    take(root, "b")
    with pytest.raises(run_state.Refused, match="by migration b"):
        take(root, "a")


def test_a_begun_epoch_stays_with_who_began_it_however_late(root: str, run: RunDirectory):
    take(root, "a", seconds=-1.0)
    run.fence(2, "target of a", 5)
    assert take(root, "a")["epoch"] == 2, "it goes on"
    with pytest.raises(run_state.Refused, match=r"was moved on to target of a \(epoch 2\)"):
        take(root, "b")
    take(root, "b", epoch=3)
    with pytest.raises(run_state.Refused, match="meanwhile"):
        take(root, "a")


def test_orders_and_fences_of_others_are_refused(root: str, run: RunDirectory):
    run.attempt(1)
    take(root, "a")
    assert ownership.send_command(root, "run", 1, {**STOP, "migration": "a"}) == 1
    with pytest.raises(run_state.Refused, match="by migration a"):
        ownership.send_command(root, "run", 1, {**STOP, "migration": "b"})
    assert records.Command.read(run.attempt(1).command_file).migration == "a"
    fence = records.Fence.read(run.paths.fence).sealed(2, "elsewhere", 5)
    for change in (
        lambda: ownership.put_fence(root, "run", fence.to_json(), migration="b"),
        lambda: ownership.seal(root, "run", 2, "elsewhere", 5, migration="b"),
    ):
        with pytest.raises(run_state.Refused, match="by migration a"):
            change()
    assert records.Fence.read(run.paths.fence).epoch == 1
    assert ownership.seal(root, "run", 2, "target of a", 5, migration="a")["epoch"] == 2


def test_who_comes_back_may_give_orders_where_an_earlier_move_began_an_epoch(root: str, run: RunDirectory):
    """An attempt that stands by on a former source; the move from there has finished, and its mover lies there."""
    run.attempt(1)
    take(root, "there")
    ownership.seal(root, "run", 2, "target of there", 5, migration="there")
    hold = records.Command(records.STANDBY, epoch=3, step=9, migration="back").to_json()
    assert ownership.send_command(root, "run", 1, hold) == 1
    with pytest.raises(run_state.Refused, match="by migration there"):
        ownership.send_command(root, "run", 1, {**hold, "epoch": 2})


def test_a_run_that_is_moved_on_is_not_taken_back(root: str, run: RunDirectory):
    """The target of one move is the source of the next: only one of the rollback and the next move gets epoch 3."""
    there = records.first_fence("here").sealed(2, "there", 5)
    back = there.rolled_back("here", 5)
    ownership.put_fence(root, "run", there.to_json(), migration="first")
    take(root, "second", epoch=3)
    with pytest.raises(run_state.Refused, match="by migration second"):
        ownership.put_fence(root, "run", back.to_json(), migration="first")
    ownership.release(root, "run", "second")
    ownership.put_fence(root, "run", back.to_json(), migration="first")
    with pytest.raises(run_state.Refused, match=r"was moved on to here \(epoch 3\)"):
        take(root, "second", epoch=3)


SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]


def test_a_start_that_arrives_late_makes_no_second_engine(root: str, run: RunDirectory):
    Path(run.paths.config).write_text("a: 1\n")
    first, second = run_state.claim_attempt(root, "run"), run_state.claim_attempt(root, "run")
    started = records.ProcessIdentity.from_json(attempts.start(root, "run", second, SLEEPER, {}))
    try:
        with pytest.raises(run_state.Refused, match="attempt 2 of run runs here already"):
            attempts.start(root, "run", first, SLEEPER, {})
        assert run_state.running_attempt(root, "run") == second
        third = run_state.claim_attempt(root, "run")
        assert run_state.describe(root, "run")["attempt"] == second, "a claim says nothing of the run"
        with pytest.raises(run_state.Refused):
            attempts.start(root, "run", third, SLEEPER, {})
        assert run_state.attempts(run.paths) == [second], "claims that came to nothing are given back"
    finally:
        os.kill(started.pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while run_state.running_attempt(root, "run"):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_start_waits_for_the_end_of_an_attempt_that_has_said_its_last_word(root: str, run: RunDirectory):
    """On one machine: the history that was copied here says so of a process that is about to end."""
    Path(run.paths.config).write_text("a: 1\n")
    ending = subprocess.Popen(SLEEPER)
    late = threading.Timer(0.3, ending.kill)
    try:
        identity = records.identify(ending.pid)
        assert identity is not None
        run.status(1, records.STOPPED, 3, identity)
        assert run_state.running_attempt(root, "run") == 1
        late.start()
        second = run_state.claim_attempt(root, "run")
        started = records.ProcessIdentity.from_json(attempts.start(root, "run", second, SLEEPER, {}))
        os.kill(started.pid, signal.SIGKILL)
    finally:
        late.cancel()
        ending.kill()
        ending.wait()


def test_a_dead_attempt_is_no_living_one(root: str, run: RunDirectory):
    run.status(1, records.TRAINING, 3, dead_process())
    assert run_state.running_attempt(root, "run") == 0
    run.status(2, records.TRAINING, 3)
    assert run_state.running_attempt(root, "run") == 2
