"""A rollback whose target shows less than was started there; adopted runs; an owner that changes during a launch."""

from __future__ import annotations

import random
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from midstream import cli
from midstream.install.bundle import EngineInstall
from midstream.install.environment import Environment
from midstream.launch import launch_run
from midstream.launch.start_attempt import Prepared
from midstream.migrate.journal import migration_directory
from midstream_core import records
from support.ownership import restored_cases
from support.ownership.histories import HOSTS, OPERATORS, RUN, History, state
from support.ownership.restored_cases import Histories

Command = Callable[..., tuple[int, str]]


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Histories]:
    with restored_cases.opened(tmp_path) as histories:
        yield histories


@pytest.fixture
def history(tmp_path: Path, made: Histories) -> History:
    """A run that went from one to two."""
    return History(tmp_path / "history", random.Random(1), (("ann", "two", None),))


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], made: Histories, history: History) -> Command:
    """Run a command of an operator: exit code, output."""

    def run(operator: str, *flags: str) -> tuple[int, str]:
        capsys.readouterr()
        made.starts.clear()
        migration_directory._CACHED_VIEWS.clear()
        with state(history.room / operator):
            code = cli.main(["--fleet", str(history.file), *flags])
        out, err = capsys.readouterr()
        return code, out + err

    return run


def launch(history: History, host: str) -> tuple[str, ...]:
    return "--launch", history.paths(host).config, "--on", host, "--run-id", RUN


@pytest.mark.parametrize("left", ["nothing", "the fence"])
def test_rollback_needs_consent_where_the_attempt_is_lost(
    history: History, made: Histories, command: Command, left: str
) -> None:
    """Its disk was put back, or is not mounted, while its engine may train.

    On the old code the rollback took that as proof that nothing was started, and started the source without a word.
    """
    names = [truth.moment for truth in history.moments]
    for name in (*OPERATORS, *HOSTS):
        history.put(names.index("m0 one -> two: started"), name)
    if left == "nothing":
        shutil.rmtree(history.paths("two").dir)
    else:
        history.put(names.index("m0 one -> two: target has the fence"), "two")
    code, said = command("ann", "--rollback", "m0")
    assert code == 3, said
    assert "two shows no attempt 2 of solo, which was started there" in said
    assert "--yes accepts it" in said
    assert made.starts == []
    assert records.Fence.read(history.paths("one").fence).owner == "two"
    # A process that rolls back by itself, after a failure, has no consent either.
    with state(history.room / "ann"):
        restored_cases.migration_process.rollback("m0")
        view = migration_directory.MigrationDirectory("m0").view()
    assert (view.state, made.starts) == ("rollback incomplete", []), view.error
    assert "two shows no attempt 2 of solo" in view.error
    code, said = command("ann", "--rollback", "m0", "--yes")
    assert made.starts == [("attempt", "one", "one")], said
    assert records.Fence.read(history.paths("two").fence).owner == "one", "it is closed"


@pytest.mark.parametrize("host", ["one", "two"])
def test_adopted_run_is_not_taken_for_a_restored_one(
    history: History, made: Histories, command: Command, host: str
) -> None:
    """On the old code the adoption remembered its checkpoint under an epoch that no checkpoint has.

    Each launch of the adopted run was refused: "shows step 8, and this machine has seen step 8".
    """
    for name in ("one", "two"):
        if name != host:
            shutil.rmtree(history.paths(name).dir)
    Path(history.paths(host).ownership).unlink()
    code, said = command("ben", "--repair", RUN, "--on", host, "--yes")
    assert code == 0, said
    code, said = command("ben", *launch(history, host))
    assert made.starts == [("launch", host, host)], said


def test_two_adoptions_at_once_leave_one_owner(history: History, made: Histories, command: Command) -> None:
    for operator, host in (("ann", "one"), ("ben", "two")):
        code, said = command(operator, "--repair", RUN, "--on", host, "--yes")
        assert code == 0, said
    for operator in OPERATORS:
        code, said = command(operator, *launch(history, "one"))
        assert (code, made.starts) == (2, []), said
        command(operator, *launch(history, "two"))
        assert made.starts == [("launch", "two", "two")]


def test_owner_that_changes_during_a_launch_starts_nothing(
    history: History, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another operator's migration seals the run after the launch was judged, and agreed to."""

    def prepare(*_: Any) -> dict[str, Prepared]:
        paths = history.paths("two")
        records.Fence.read(paths.fence).sealed(3, "three", 12).write(paths.fence)
        engine = EngineInstall(*[sys.executable] * len(fields(EngineInstall)))
        return {"two": Prepared(engine, Environment(*[sys.executable] * len(fields(Environment))))}

    monkeypatch.setattr(launch_run, "prepare_target", prepare)
    code, said = command("ann", *launch(history, "two"), "--yes")
    assert code == 1, said
    assert "run solo belongs to three (ownership 3) by now; an attempt of ownership 2 is not started" in said
    assert not list(Path(history.paths("two").attempts).glob("003/launch*.json"))
