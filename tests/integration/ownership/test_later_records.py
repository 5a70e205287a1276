"""Later records count whatever clocks, removed operators and former owners show."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from midstream import cli
from midstream.fleet.fleet_file import load_fleet
from midstream.migrate.journal import migration_directory
from midstream.migrate.journal.facts import Facts, Sealed
from midstream.migrate.journal.journal import Journal
from midstream.migrate.journal.migration_directory import MigrationDirectory
from midstream.migrate.journal.plan import Plan
from midstream.migrate.phases.relaunch import Relaunch
from midstream.migrate.steps.migration import Migration, MovedOnError, RollbackRequested
from midstream.migrate.steps.ownership_records import chain_of_target, hand_over, read_chain
from midstream.migrate.steps.source_return import put_fence, returned_fence
from midstream.ownership import memory, signed_chain
from midstream.ownership.owner_judge import HostCopy, OwnerJudge
from midstream.watch.known_owners import remember_owners, remember_stop
from midstream.watch.watcher import Watcher, take_snapshot
from midstream_core import records
from midstream_host.runs import run_state
from support.migrations.sample_plan import PLAN, changed
from support.ownership import restored_cases
from support.ownership.chain_text import chain_text
from support.ownership.histories import RUN, History, fleet_text, state
from support.run_directory import RunDirectory

YEAR = 365 * 86400.0


def built(tmp_path: Path, *migrations: tuple[str, str, int | None]) -> History:
    with restored_cases.opened(tmp_path):
        return History(tmp_path / "history", random.Random(1), migrations)


def at(history: History, host: str) -> RunDirectory:
    run = RunDirectory.__new__(RunDirectory)
    run.paths = history.paths(host)
    return run


@contextmanager
def opened(history: History, operator: str, plan: Plan | MigrationDirectory) -> Iterator[Migration]:
    """Open a migration as its process has it."""
    with state(history.room / operator), history.hosts() as hosts:
        directory = plan
        if not isinstance(directory, MigrationDirectory):
            directory = migration_directory.create(directory, history.file.read_text())
        journal = Journal(directory.journal_file)
        try:
            yield Migration(directory.plan(), directory, journal, hosts.fleet, hosts, Watcher(hosts.fleet, hosts))
        finally:
            journal.close()


def test_permission_is_old_although_the_clock_was_set_back(tmp_path: Path) -> None:
    """On the old code a process that was suspended for an hour, while the clock was set back by it, started the run."""
    history = built(tmp_path, ("ann", "two", 1))
    operator, migration, process = history.suspended[0]
    with state(history.room / operator):
        directory = MigrationDirectory(migration)
    with opened(history, operator, directory) as move:
        move.process = process
        move.start_allowed_at = time.time() - 1.0, time.monotonic() - 3600.0
        sealed = move.journal.facts.sealed
        assert sealed is not None
        with pytest.raises(MovedOnError):
            hand_over(move, sealed)


def test_second_migration_of_a_lost_owner_starts_nothing(tmp_path: Path) -> None:
    """Two operators each migrate a stale copy of a lost owner's run: the second plan is older than the first migration.

    On the old code both signed a record of one epoch, and both targets started.
    """
    history = built(tmp_path, ("ann", "two", None), ("ann", "three", None))
    history.roots["four"] = history.room / "four"
    history.roots["four"].mkdir()
    history.file.write_text(fleet_text(history.roots, history.keys))
    plan = changed(
        PLAN, migration="late", run_id=RUN, source="one", source_target="one", source_hosts=("one",), source_epoch=2,
        epoch=3, target="four", target_host="four", target_hosts=("four",), fleet_file=str(history.file),
        source_lost=True, source_store="", target_store="",
    )  # fmt: skip
    with opened(history, "ben", plan) as move:
        move.source_group.acquire("late", 3, "four", 600.0)
        move.source_group.seal("late", 3, "four", 8)
        fence = records.Fence.read(history.paths("one").fence)
        sealed = Sealed(8, "step-8-a001", "d" * 64, 1, fence)
        move.journal.record(Facts(sealed=sealed))
        with pytest.raises(MovedOnError, match="belongs to three by a signed record"):
            hand_over(move, sealed)
        remembered = memory.recall(RUN)
        assert remembered is None or remembered.chain.head.owner != "four", "nothing was signed"


def test_two_copies_of_a_state_directory_sign_one_history(tmp_path: Path) -> None:
    """A state directory is copied between plan and hand-over; a process of each copy hands the run over.

    On the old code each copy signed a record of its own time, and remembered it although the source refused it: the
    rollback of the one was refused for ever by what the other had stored.
    """
    history = built(tmp_path, ("ann", "two", None))
    plan = changed(
        PLAN, migration="copied", created=1.7e9, run_id=RUN, source="two", source_target="two", source_hosts=("two",),
        source_epoch=2, epoch=3, target="three", target_host="three", target_hosts=("three",),
        fleet_file=str(history.file), source_store="", target_store="",
    )  # fmt: skip
    with opened(history, "ben", plan) as move:
        move.source_group.acquire("copied", 3, "three", 600.0)
        move.source_group.seal("copied", 3, "three", 12)
        sealed = Sealed(12, "step-12-a002", "d" * 64, 2, records.Fence.read(history.paths("two").fence))
        shutil.copytree(history.room / "ben", history.room / "ben-copied")
        read_chain(move)
        chain_before = move.chain_before
        hand_over(move, sealed)
    with state(history.room / "ben-copied"):
        directory = MigrationDirectory("copied")
    with opened(history, "ben-copied", directory) as move:
        move.chain_before = chain_before  # it has read it before the other handed over
        hand_over(move, sealed)
        remembered = memory.recall(RUN)
        assert remembered is not None
    assert remembered.chain == records.OwnershipChain.read(history.paths("two").ownership)
    assert remembered.chain.head.owner == "three"


def test_migration_that_its_copy_rolled_back_is_not_completed(tmp_path: Path) -> None:
    """A state directory is copied after the target's start; a process of the copy rolls back while the other goes on.

    On the old code that one found the run "migrated on" to its own source, and ended as completed.
    """
    history = built(tmp_path, ("ann", "two", None))
    plan = changed(
        PLAN, migration="copied", created=1.7e9, run_id=RUN, source="two", source_target="two", source_hosts=("two",),
        source_epoch=2, epoch=3, target="three", target_host="three", target_hosts=("three",),
        fleet_file=str(history.file), source_store="", target_store="",
    )  # fmt: skip
    with opened(history, "ben", plan) as move:
        move.source_group.acquire("copied", 3, "three", 600.0)
        move.source_group.seal("copied", 3, "three", 12)
        sealed = Sealed(12, "step-12-a002", "d" * 64, 2, records.Fence.read(history.paths("two").fence))
        read_chain(move)
        hand_over(move, sealed)
        move.target_group.put_fence(sealed.fence, "copied", chain_of_target(move))
        move.journal.record(Facts(sealed=sealed, relaunching=True, target_attempt=3))
        shutil.copytree(history.room / "ben", history.room / "ben-copied")
    with state(history.room / "ben-copied"):
        directory = MigrationDirectory("copied")
    with opened(history, "ben-copied", directory) as move:
        put_fence(move, move.target_group, returned_fence(move, sealed.fence))
    with state(history.room / "ben"):
        directory = MigrationDirectory("copied")
    with opened(history, "ben", directory) as move, pytest.raises(RollbackRequested):
        Relaunch().run(move)


def test_refused_record_is_not_remembered(tmp_path: Path) -> None:
    """On the old code the operator's machine contradicted for ever what all hosts showed."""
    history = built(tmp_path, ("ann", "two", None))
    plan = changed(
        PLAN, migration="slept", run_id=RUN, source="two", source_target="two", source_hosts=("two",), source_epoch=2,
        epoch=3, target="three", target_host="three", target_hosts=("three",),
        fleet_file=str(history.file), source_store="", target_store="",
    )  # fmt: skip
    with opened(history, "ann", plan) as move:
        before = memory.recall(RUN)
        move.source_group.acquire("slept", 3, "three", 600.0)
        move.source_group.seal("slept", 3, "three", 12)
        sealed = Sealed(12, "step-12-a002", "d" * 64, 2, records.Fence.read(history.paths("two").fence))
        records.Fence(4, "four", sealed_step=12).write(history.paths("two").fence)  # while this process slept
        with pytest.raises(MovedOnError):
            hand_over(move, sealed)
        assert memory.recall(RUN) == before


@pytest.mark.parametrize("exists", [True, False], ids=["adopted", "new run"])
def test_later_run_of_a_name_counts_whatever_its_clock_showed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], exists: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock of the first operator's machine was a year ahead.

    On the old code the adoption, or the new run, was judged older than what it replaces: the run was a claim for ever.
    """
    history = built(tmp_path, ("ann", "two", 0))
    wall = time.time
    with state(history.room / "ann"):
        monkeypatch.setattr(time, "time", lambda: wall() + YEAR)
        ahead = signed_chain.first_chain(RUN, "three", records.first_fence("three"))
        monkeypatch.undo()
    with state(history.room / "ben"):
        memory.remember(ahead)
        if exists:  # three is lost for good: its user names the copy that remains
            code = cli.main(["--fleet", str(history.file), "--repair", RUN, "--on", "one", "--yes"])
            assert code == 0, capsys.readouterr()
        else:
            copies = [HostCopy("three", records.first_fence("three"), chain_text(ahead))]
            begun = OwnerJudge(load_fleet(history.file)).judge(RUN, copies).begun
            memory.remember(signed_chain.first_chain(RUN, "one", records.first_fence("one"), begun=begun))
        now = memory.recall(RUN)
        assert now is not None
        assert now.chain.head.owner == "one"
        assert ahead.head.key in now.earlier
        text = chain_text(now.chain)
        shown = [HostCopy("one", records.first_fence("one"), text),
                 HostCopy("three", records.first_fence("three"), chain_text(ahead))]  # fmt: skip
        judgement = OwnerJudge(load_fleet(history.file)).judge(RUN, shown)
        assert (judgement.head and judgement.head.owner) == "one"


@pytest.mark.parametrize("remembered", [True, False])
def test_run_goes_on_after_an_operator_has_left_the_team(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], remembered: bool
) -> None:
    """One record of its chain has the signature of an operator whose key was removed since.

    On the old code each run that this operator had ever migrated became a claim. Without memory it still does.
    """
    history = built(tmp_path, ("ben", "two", None))
    with state(history.room / "ann"):
        if remembered:
            assert cli.main(["--fleet", str(history.file), "--status"]) == 0
        history.file.write_text(fleet_text(history.roots, history.keys[:1]))
        capsys.readouterr()
        assert cli.main(["--fleet", str(history.file), "--status"]) == 0
        rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith(RUN)]
        claims = [line for line in rows if "(claim)" in line]
        assert bool(claims) is not remembered, rows
        if remembered:  # a longer chain that ends with this operator's record is a claim
            chain = records.OwnershipChain.read(history.paths("two").ownership)
            with state(history.room / "ben"):
                longer = signed_chain.next_chain(chain, epoch=3, owner="three", step=20, migration="x")
            copies = [
                HostCopy("two", records.Fence.read(history.paths("two").fence), chain_text(chain)),
                HostCopy("three", records.Fence(3, "three", 20), chain_text(longer)),
            ]
            judgement = OwnerJudge(load_fleet(history.file)).judge(RUN, copies)
            assert judgement.head is not None
            assert judgement.head.owner == "two"
            assert judgement.standing("two").kind == "owner"
            assert judgement.standing("three").kind == "claim"


def test_false_checkpoints_do_not_make_the_owner_look_restored(tmp_path: Path) -> None:
    """A former owner answers a stop with step 5000; the owner shows an epoch that no record names.

    On the old code both were remembered, and the honest owner was refused later as an older copy.
    """
    history = built(tmp_path, ("ann", "two", None))
    with state(history.room / "ann"), history.hosts() as hosts:
        copy = hosts.get("two").call(run_state.describe)(root=str(history.roots["two"]), run_id=RUN)
        at(history, "two").checkpoint(5000, 7, 9)
        snapshot = take_snapshot(hosts, timeout=30.0)
        remember_owners(snapshot)
        assert copy.status is not None
        ended = replace(copy.status, step=5000, checkpoint="step-5000-a007", epoch=2)
        remember_stop(snapshot.judgement(RUN), "one", ended)
        remember_stop(snapshot.judgement(RUN), "two", replace(ended, epoch=9))
        found = memory.recall(RUN)
        assert found is not None
        assert (found.epoch, found.step) <= (2, 12), found
        remember_stop(snapshot.judgement(RUN), "two", ended)
        found = memory.recall(RUN)
        assert found is not None
        assert found.step == 5000, "the owner's own word counts"
