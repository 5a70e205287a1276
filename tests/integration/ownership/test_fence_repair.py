"""Repair of a lost fence: starts that other records show, and claims of a former owner."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from midstream import cli
from midstream.ownership import memory
from midstream_core import records
from midstream_core.attempt import start_number
from midstream_engine.checkpoint.loading.checkpoint_list import newest_complete
from support.local_fleet import Fleet, stopped_run
from support.ownership import restored_cases
from support.ownership.histories import RUN, History, state
from support.run_directory import RunDirectory

LARGEST = 2**63 - 1


def began(run: RunDirectory, attempt: int, start: int, *steps: int) -> None:
    """Take the next start number as an attempt does, and save ``steps`` under it."""
    taken = start_number.take(run.paths, 1, lambda fence: newest_complete(run.paths, fence))
    assert taken is not None
    assert taken.start == start
    for step in steps:
        file = Path(run.paths.checkpoint(run.checkpoint(step, attempt)), records.MANIFEST)
        records.write_json(str(file), {**records.read_json(str(file)), "start": start})
    run.status(attempt, records.STOPPED, max(steps, default=8))
    file = run.attempt(attempt).status()
    records.write_json(file, {**records.read_json(file), "start": start, "boot_id": "another", "heartbeat": 1000.0})


@pytest.mark.parametrize("saved", [True, False], ids=["saved", "saved nothing yet"])
def test_repaired_fence_has_the_starts_that_records_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], saved: bool
) -> None:
    """On the old code the fence had start 0: the next start took number 1 again, and superseded ones could commit."""
    monkeypatch.setenv("MIDSTREAM_STATE", str(tmp_path / "state"))
    fleet = Fleet(tmp_path, capsys, "here")
    run = stopped_run(fleet.roots["here"])
    began(run, 1, 1, 12)
    began(run, 2, 2, 16, 20)
    began(run, 3, 3, *((24,) if saved else ()))
    before = records.Fence.read(run.paths.fence)
    Path(run.paths.fence).write_bytes(b"{")
    [written] = fleet.repaired(RUN)
    after = records.Fence.read(run.paths.fence)
    assert after.order == before.order == (1, 3)
    assert any("start 3 of ownership 1" in line for line in written["evidence"]), written
    for start in range(5):
        for step in range(40):
            if after.accepts(1, step, start) != before.accepts(1, step, start):
                # A start is closed at what it saved: nothing after that can be read.
                assert start == 0
                assert step > 8
    assert newest_complete(run.paths, after) == newest_complete(run.paths, before)
    taken = start_number.take(run.paths, 1, lambda fence: newest_complete(run.paths, fence))
    assert taken is not None
    assert taken.order == (1, 4)


def claimed_epoch(history: History, run: RunDirectory) -> None:
    run.checkpoint(5000, 7, 9)
    run.status(7, records.STOPPED, 5000)
    file = run.attempt(7).status()
    records.write_json(file, {**records.read_json(file), "epoch": 9, "start": LARGEST})


def claimed_start(history: History, run: RunDirectory) -> None:
    run.status(7, records.STOPPED, 5000)
    file = run.attempt(7).status()
    records.write_json(file, {**records.read_json(file), "epoch": 2, "start": LARGEST})


def unknown_target(history: History, run: RunDirectory) -> None:
    lineage = records.Lineage.read(run.paths.lineage)
    entry = {**lineage.attempts[0], "attempt": 7, "target": "nowhere"}
    lineage.with_entry(records.LineageEntry.from_json(entry)).write(run.paths.lineage)


def changed_attempt(history: History, run: RunDirectory) -> None:
    lineage = records.Lineage.read(run.paths.lineage)
    entry = {**lineage.attempts[-1], "attempt": 2, "epoch": 9, "target": "one", "first_step": 5000}
    lineage.with_entry(records.LineageEntry.from_json(entry)).write(run.paths.lineage)


def other_seal(history: History, run: RunDirectory) -> None:
    records.Fence(1, "one").sealed(2, "two", 4).write(run.paths.fence)


def closed_start(history: History, run: RunDirectory) -> None:
    fence = records.Fence.read(run.paths.fence).to_json()
    starts = [{"epoch": 1, "start": 0, "step": None}]
    records.write_json(run.paths.fence, {**fence, "start": LARGEST, "starts": starts})


CLAIMS: list[Callable[[History, RunDirectory], None]] = [
    claimed_epoch, claimed_start, unknown_target, changed_attempt, other_seal, closed_start,
]  # fmt: skip


@pytest.mark.parametrize("lost", ["fence.json", "lineage.json"])
@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.__name__.replace("_", " "))
def test_claims_of_a_former_owner_enter_no_repair(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], claim: Callable[[History, RunDirectory], None], lost: str
) -> None:
    """On the old code its epochs, starts and names refused the repair, or were written into the owner's records."""
    with restored_cases.opened(tmp_path):
        history = History(tmp_path / "history", random.Random(1), (("ann", "two", None),))
    owner = history.paths("two")
    lineage = records.Lineage.read(owner.lineage)
    entry = {**lineage.attempts[-1], "migration": "m0"}
    lineage.with_entry(records.LineageEntry.from_json(entry)).write(owner.lineage)
    file = Path(owner.fence if lost == "fence.json" else owner.lineage)
    before = json.loads(file.read_bytes())
    newest = owner.attempt(max(int(each.name) for each in Path(owner.attempts).iterdir()))
    records.Restore("step-8-a001", 8, "d" * 64, "d" * 64, [], [], 0.0, "", "").write(newest.restore)
    former = RunDirectory.__new__(RunDirectory)
    former.paths = history.paths("one")
    claim(history, former)
    file.write_bytes(b"{")
    with state(history.room / "ben"):  # another operator, without the journal of the migration
        code = cli.main(["--fleet", str(history.file), "--repair", RUN, "--on", "two", "--yes"])
    said = capsys.readouterr()
    if claim in (other_seal, closed_start) and lost == "fence.json":
        # No copy is left that agrees with the signed record, but the lineage of the owner determines it.
        assert "lineage" in said.out, said
    assert code == 0, said
    after = json.loads(file.read_bytes())
    if lost == "fence.json":
        assert records.Fence.from_json(after) == records.Fence.from_json(before), said
    else:
        kept = {(one["attempt"], one["epoch"], one["target"]) for one in after["attempts"]}
        assert {(one["attempt"], one["epoch"], one["target"]) for one in before["attempts"]} <= kept
        assert all(epoch < 9 for _, epoch, _ in kept), after


@pytest.mark.parametrize(("claimed", "after"), [(3, 3), (LARGEST, 0)])
def test_number_of_a_start_on_another_host_is_not_given_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], claimed: int, after: int
) -> None:
    """The owner's root was restored, and another host has a copy of a checkpoint of the start that is lost.

    On the old code the next start had the number of the lost one, and its fence accepted that checkpoint.
    """
    with restored_cases.opened(tmp_path):
        history = History(tmp_path / "history", random.Random(1), (("ann", "two", None),))
    owner = history.paths("two")
    assert records.Fence.read(owner.fence).order == (2, 0)
    former = RunDirectory.__new__(RunDirectory)
    former.paths = history.paths("one")
    file = Path(former.paths.checkpoint(former.checkpoint(35, 7, 2)), records.MANIFEST)
    records.write_json(str(file), {**records.read_json(str(file)), "start": claimed})
    Path(owner.fence).unlink()
    with state(history.room / "ann"):
        code = cli.main(["--fleet", str(history.file), "--repair", RUN, "--yes"])
    said = capsys.readouterr()
    assert code == 0, said
    fence = records.Fence.read(owner.fence)
    assert fence.order == (2, after), said
    taken = start_number.take(owner, 2, lambda fence: newest_complete(owner, fence))
    assert taken is not None
    assert not (claimed == after and taken.accepts(2, 35, claimed))


@pytest.mark.parametrize("readable", [True, False], ids=["readable", "lost"])
def test_start_that_this_machine_has_seen_is_not_given_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], readable: bool
) -> None:
    """The owner's root was restored, with a fence of an earlier start.

    On the old code the next start had the number of a lost one, and `--restart` started it.
    """
    with restored_cases.opened(tmp_path):
        history = History(tmp_path / "history", random.Random(1), (("ann", "two", None),))
    owner, earlier = history.paths("two"), b""
    for number in range(1, 4):
        taken = start_number.take(owner, 2, lambda fence: newest_complete(owner, fence))
        assert taken is not None
        assert taken.order == (2, number)
        earlier = earlier or Path(owner.fence).read_bytes()
    look, restart, repair = ("--status",), ("--restart", RUN, "--yes"), ("--repair", RUN, "--on", "two", "--yes")
    with state(history.room / "ann"):
        assert cli.main(["--fleet", str(history.file), *look]) == 0
        Path(owner.fence).write_bytes(earlier if readable else b"{")
        if readable:
            capsys.readouterr()
            assert cli.main(["--fleet", str(history.file), *restart]) == 2
            said = capsys.readouterr().err
            assert "start 1" in said, said
            assert "this machine has seen start 3" in said, said
            assert f"midstream --repair {RUN} --on two" in said, said
        assert cli.main(["--fleet", str(history.file), *repair]) == 0, capsys.readouterr()
    assert records.Fence.read(owner.fence).order == (2, 3)
    taken = start_number.take(owner, 2, lambda fence: newest_complete(owner, fence))
    assert taken is not None
    assert taken.order == (2, 4)
    assert not any(taken.accepts(2, 10**6, number) for number in range(4))


@pytest.mark.parametrize(("shown", "kept"), [(memory.MAX_START, memory.MAX_START), (10**18, 1)])
def test_start_that_no_run_reaches_is_not_remembered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], shown: int, kept: int
) -> None:
    """A host that shows the last numbers wedges nothing; what it shows up to the bound can be repaired."""
    with restored_cases.opened(tmp_path):
        history = History(tmp_path / "history", random.Random(1), (("ann", "two", None),))
    owner = history.paths("two")
    honest = start_number.take(owner, 2, lambda fence: newest_complete(owner, fence))
    assert honest is not None
    with state(history.room / "ann"):
        for start in (1, shown):
            dataclasses.replace(honest, start=start).write(owner.fence)
            assert cli.main(["--fleet", str(history.file), "--status"]) == 0
        seen = memory.recall(RUN)
        assert seen is not None
        assert (seen.start_epoch, seen.start) == (2, kept)
        honest.write(owner.fence)
        code = cli.main(["--fleet", str(history.file), "--repair", RUN, "--on", "two", "--yes"])
    assert code == 0, capsys.readouterr()
    taken = start_number.take(owner, 2, lambda fence: newest_complete(owner, fence))
    assert taken is not None
    assert taken.order == (2, kept + 1)


def test_last_epoch_of_a_lineage_ends_no_repair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A host shows a lineage of an epoch that no run reaches; on the old code the repair counted up to it."""
    monkeypatch.setenv("MIDSTREAM_STATE", str(tmp_path / "state"))
    fleet = Fleet(tmp_path, capsys, "here", "there")
    run, other = stopped_run(fleet.roots["here"]), stopped_run(fleet.roots["there"])
    for lost in (run.paths.fence, run.paths.lineage):
        Path(lost).write_bytes(b"{")
    Path(other.paths.fence).unlink()
    lineage = records.Lineage.read(other.paths.lineage)
    entry = {**lineage.attempts[0], "attempt": 7, "epoch": 2**62}
    lineage.with_entry(records.LineageEntry.from_json(entry)).write(other.paths.lineage)
    assert "the step of its seal is not known" in fleet.refused("--repair", RUN, "--on", "here")


def test_earlier_fence_of_a_restored_owner_is_repaired(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The owner's root was restored, and its signed record with it.

    On the old code the repair ended there: an engine started under the earlier ownership, and could save nothing.
    """
    with restored_cases.opened(tmp_path):
        history = History(tmp_path / "history", random.Random(1), (("ann", "two", None),))
    owner = history.paths("two")
    before = records.Fence.read(owner.fence)
    records.Fence(1, "one").write(owner.fence)
    with state(history.room / "ben"):
        refused = cli.main(["--fleet", str(history.file), "--restart", RUN, "--yes"])
        said = capsys.readouterr()
        assert refused == 2, said
        assert f"midstream --repair {RUN} --on two" in said.err, said
        code = cli.main(["--fleet", str(history.file), "--repair", RUN, "--on", "two", "--yes"])
    assert code == 0, capsys.readouterr()
    after = records.Fence.read(owner.fence)
    assert (after.epoch, after.owner, after.sealed_step) == (before.epoch, before.owner, before.sealed_step)


@pytest.mark.parametrize("allowed", ["", "process", None])
def test_lost_fence_of_a_source_that_started_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], allowed: str | None
) -> None:
    """The owner's root was restored while a migration from it had the lock: it has lost its fence and signed record.

    On the old code `--continue` and `--repair` named each other. A permission to start the target still says no.
    """
    with restored_cases.opened(tmp_path):
        history = History(tmp_path / "history", random.Random(1), (("ann", "two", None),))
    owner = history.paths("two")
    before = records.Fence.read(owner.fence)
    Path(owner.fence).unlink()
    Path(owner.ownership).unlink(missing_ok=True)
    records.MigrationLock("m-9", before.epoch + 1, "one", 0.0, start_allowed=allowed).write(owner.migration_lock)
    with state(history.room / "ann"):
        code = cli.main(["--fleet", str(history.file), "--repair", RUN, "--yes"])
    said = capsys.readouterr()
    if allowed == "":
        assert code == 0, said
        assert records.Fence.read(owner.fence).order == before.order
    else:
        assert code == 3, said
        assert "may have sealed it for ownership 3" in said.err
        assert not Path(owner.fence).exists()
