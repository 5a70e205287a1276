"""Runs whose fence has the largest epoch or start that a record can have: on a host, and in a bucket."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from midstream.fleet.fleet import LocalHostConfig
from midstream.hosts.local_host import LocalHost
from midstream.migrate.journal.facts import Sealed
from midstream.migrate.proof import restore_evidence
from midstream_core import records
from midstream_core.records.fence import LAST
from midstream_host.allowlist import CHECKPOINTS, largest
from simulators.object_stores.bucket import BucketServer
from simulators.sshd import Lab
from support.command_line import SLOWER, TINY, Run, midstream, refused, step_of
from support.ownership.run_bucket import STORE, put_fence

FALSE = 2**63 - 1
TRAINING = (*SLOWER, "--trainer.num_train_steps", "100000")


def stopped(lab: Lab, runs: Callable[..., Run], *flags: str) -> tuple[Path, Run, int]:
    """Return the fleet file, a run that has trained and stopped on "one", and its last step."""
    host = lab.local("one", devices=1)
    file, run = lab.fleet_file(one=host), runs(host.root, "r")
    done = midstream("--fleet", file, "--launch", TINY, "--on", "one", "--run-id", "r", "--", *TRAINING, *flags)
    assert done.code == 0, done.stderr
    run.wait_step(4)
    ended = midstream("--fleet", file, "--stop", "r", "--json")
    assert ended.code == 0, ended.stderr
    return file, run, step_of(ended.result["checkpoint"])


@pytest.mark.drawn
@pytest.mark.parametrize("where", ["host", "bucket"])
def test_last_numbers_end_a_launch_at_once(
    lab: Lab, runs: Callable[..., Run], bucket: BucketServer, where: str
) -> None:
    """On the old code an engine started: no checkpoint of it was read, its stop did not end, or it overflowed."""
    stored = where == "bucket"
    file, run, step = stopped(lab, runs, *(("--trainer.checkpointer.base_path", STORE) if stored else ()))
    fence, launch = run.fence, ("--launch", run.paths.config, "--on", "one", "--run-id", "r", "--yes")

    def write(new: records.Fence) -> None:
        new.write(run.paths.fence)
        if stored:
            put_fence(bucket, "r", new)

    def started(start: int) -> records.Fence:
        closed = records.ClosedStart(1, start - 1, step).to_json()
        return dataclasses.replace(fence, start=start, starts=[*fence.starts, closed])

    for start in (FALSE, FALSE - 2, LAST + 1, LAST):
        write(started(start))
        refused(
            midstream("--fleet", file, *launch), 2, f"one: r: start {start} is ", "the last one", "--repair r --on one"
        )
    # The largest that can be followed: its checkpoints are read, and the next start is refused.
    write(started(LAST - 2))
    done = midstream("--fleet", file, *launch, "--json")
    assert done.code == 0, done.stderr
    ended = midstream("--fleet", file, "--stop", "r", "--json")
    assert ended.code == 0, ended.stderr
    name = ended.result["checkpoint"]
    assert step_of(name) >= step
    if stored:
        assert name.endswith(f"-s{LAST - 1}")
    assert largest(CHECKPOINTS, f"{name}/train.json")
    shown = midstream("--fleet", file, "--checkpoints", "r")
    assert name in shown.stdout, shown.stdout
    failed = midstream("--fleet", file, *launch)
    assert failed.code == 1
    assert f"start {LAST} is the last one" in failed.stderr
    # An epoch, of a run without signed records.
    os.unlink(run.paths.ownership)
    shutil.rmtree(Path(os.environ["MIDSTREAM_STATE"], "ownership"))
    for epoch in (FALSE, FALSE - 1, LAST):
        write(records.Fence(epoch, "one", step, [records.Seal(epoch - 1, step).to_json()]))
        refused(midstream("--fleet", file, *launch), 2, f"one: r: ownership {epoch} is ", "the last one")
    assert run.attempt == 3, "no further engine was started"


@pytest.mark.drawn
def test_false_epoch_ends_a_running_engine_cleanly(lab: Lab, runs: Callable[..., Run]) -> None:
    """On the old code the engine failed with an overflow when it read it."""
    host = lab.local("one", devices=1)
    file, run = lab.fleet_file(one=host), runs(host.root, "r")
    done = midstream("--fleet", file, "--launch", TINY, "--on", "one", "--run-id", "r", "--", *TRAINING)
    assert done.code == 0, done.stderr
    records.Fence(FALSE, "one", 4, [records.Seal(FALSE - 1, 4).to_json()]).write(run.paths.fence)
    run.wait(lambda run: not run.running, "the engine's end")
    status = run.status()
    assert status is not None
    assert "Overflow" not in status.message
    assert "belongs to ownership" in status.message, status


def test_false_attempt_ends_the_search_for_its_evidence(tmp_path: Path) -> None:
    """A target gives its attempt any number; on the old code each number down from it was requested."""
    host = LocalHost("there", LocalHostConfig(root=str(tmp_path)))
    sealed = Sealed(8, "step-8-a001", "d" * 64, 1, records.first_fence("there"))
    assert restore_evidence.restored(host, "r", sealed, 10**17) is None
