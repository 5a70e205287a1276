"""Damaged records of one host: they hide no signed record, and block no run of another host."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from midstream import cli
from midstream.migrate.journal import migration_directory
from midstream_core import records
from support.ownership import restored_cases
from support.ownership.histories import HOSTS, OPERATORS, RUN, History, state
from support.ownership.restored_cases import Histories
from support.run_directory import RunDirectory

pytestmark = pytest.mark.drawn

FILES = (
    "fence.json", "lineage.json", "ownership.json", "migration_lock.json", "pins/m.json", "attempts/001/status-0.json",
    "attempts/001/launch.json", "attempts/001/exit-0.json",
)  # fmt: skip
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Histories]:
    with restored_cases.opened(tmp_path) as histories:
        yield histories


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Run a command of an operator: exit code, stdout, stderr."""

    def run(history: History, operator: str, *flags: str) -> tuple[int, str, str]:
        capsys.readouterr()
        with state(history.room / operator):
            code = cli.main(["--fleet", str(history.file), *flags])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def damage(history: History, host: str, file: str) -> None:
    path = Path(history.paths(host).dir, file)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"{")


def at(history: History, host: str) -> RunDirectory:
    run = RunDirectory.__new__(RunDirectory)
    run.paths = history.paths(host)
    return run


@pytest.mark.parametrize("file", FILES)
def test_damage_hides_no_signed_record(tmp_path: Path, made: Histories, command: Command, file: str) -> None:
    """The former owner was put back to before the hand-over, and one record of the owner is damaged.

    On the old code the launch left out all records of the owner's host, and began a second lineage.
    """
    history = History(tmp_path / "history", random.Random(1), (("ann", "two", None),))
    for name in ("one", "ben"):
        history.put(0, name)
    damage(history, "two", file.replace("001", "002"))
    made.starts.clear()
    launch = ("--launch", history.paths("one").config, "--on", "one", "--run-id", RUN)
    code, out, err = command(history, "ben", *launch)
    assert made.starts == [], (out, err)
    if file == "ownership.json":
        assert code == 3, err
        assert "two has signed records of solo that cannot be read" in err
        assert "--yes starts it all the same" in err
        command(history, "ben", *launch, "--yes")
        assert made.starts, "the user has agreed"
    else:
        assert code == 2, err
        assert "belongs to two since step 8 by a signed record (ownership 2)" in err


@pytest.mark.parametrize("file", FILES)
def test_damage_of_a_former_owner_blocks_nothing(tmp_path: Path, made: Histories, command: Command, file: str) -> None:
    """On the old code `--clean RUN` ended there, and removed nothing of the owner's host."""
    history = History(tmp_path / "history", random.Random(1), (("ann", "two", None),))
    partial = at(history, "two").checkpoint(20, 2, complete=False)
    left = Path(history.paths("two").checkpoint(partial))
    for path in (left, *left.rglob("*")):
        os.utime(path, (time.time() - 3600, time.time() - 3600))
    damage(history, "one", file)
    code, out, err = command(history, "ann", "--clean", RUN, "--yes")
    assert code == 0, err
    assert f"{RUN} is skipped: one: run {RUN}: {file}" in err
    assert not left.exists(), out
    code, out, err = command(history, "ann", "--stop", RUN)
    assert "is not running (stopped on two)" in err, (code, err)
    made.starts.clear()
    command(history, "ann", "--launch", history.paths("two").config, "--on", "two", "--run-id", RUN)
    assert made.starts == [("launch", "two", "two")]
    code, out, err = command(history, "ann", "--migrate", RUN, "--to", "three", "--mode", "cold", "--dry-run", "--json")
    assert '"source": "two"' in out, (code, err)


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("lost", ["fence.json", "lineage.json", "ownership.json", "attempts/002/status-0.json"])
@pytest.mark.parametrize("operator", OPERATORS)
def test_damage_of_a_former_owner_stops_no_repair(
    tmp_path: Path, command: Command, made: Histories, file: str, lost: str, operator: str
) -> None:
    """Ann has the journal of the migration, and Ben has nothing."""
    history = History(tmp_path / "history", random.Random(1), (("ann", "two", None),))
    owner = history.paths("two")
    lineage = records.Lineage.read(owner.lineage)
    lineage.with_entry(records.LineageEntry.from_json({**lineage.attempts[-1], "migration": "m0"})).write(owner.lineage)
    restore = records.Restore("step-8-a001", 8, "d" * 64, "d" * 64, [], [], 0.0, "", "")
    restore.write(owner.attempt(2).restore)
    before = {name: Path(owner.dir, name).read_bytes() for name in ("fence.json", "ownership.json")}
    if lost == "ownership.json":
        command(history, operator, "--status")  # another participant has to have it: this machine's memory
    damage(history, "one", file)
    damage(history, "two", lost)
    code, out, err = command(history, operator, "--repair", RUN, "--on", "two", "--yes")
    assert code == 0, (out, err)
    for name, value in before.items():
        kind = records.Fence if name == "fence.json" else records.OwnershipChain
        assert kind.read(str(Path(owner.dir, name))) == kind.from_json(records.parse_json(value, name), name)


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("moment", ["permitted", "started"])
def test_damage_of_a_former_owner_stops_no_rollback(
    tmp_path: Path, command: Command, made: Histories, file: str, moment: str
) -> None:
    """The run went from one to three; its migration to two is rolled back, and one is damaged."""
    history = History(tmp_path / "history", random.Random(1), (("ann", "three", None), ("ann", "two", None)))
    now = next(n for n, truth in enumerate(history.moments) if truth.moment == f"m1 three -> two: {moment}")
    for name in (*OPERATORS, *HOSTS):
        history.put(now, name)
    migration_directory._CACHED_VIEWS.clear()
    damage(history, "one", file)
    code, out, err = command(history, "ann", "--rollback", "m1", "--yes")
    assert code in (5, 6), (out, err)
    fence = records.Fence.read(history.paths("three").fence)
    assert (fence.epoch, fence.owner) == (4, "three"), (out, err)
