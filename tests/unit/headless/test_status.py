"""`--status`: the migrations that someone has to know about, and the runs that pass a filter."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from midstream.cli import main
from midstream.errors import Exit
from midstream.headless.status import shown_migrations
from midstream.migrate.journal import migration_state
from midstream.migrate.journal.migration_view import MigrationView
from midstream_core import records
from support.run_directory import RunDirectory, dead_process
from support.tui import prepared_migrations


def migration(state: str, run_id: str = "nano", created: float = 0.0) -> MigrationView:
    view = replace(prepared_migrations.certified(), state=state)
    identity = replace(view.plan.identity, run_id=run_id, created=created, migration=f"{run_id}-{created:.0f}")
    return replace(view, migration=identity.migration, plan=replace(view.plan, identity=identity))


def test_status_lists_open_and_rolled_back_migrations() -> None:
    open_one = migration(migration_state.RUNNING, "open")
    done = migration(migration_state.COMPLETED, "done")
    returned = migration(migration_state.ROLLED_BACK, "returned", 2.0)
    migrated_again = [
        migration(migration_state.COMPLETED, "again", 2.0),
        migration(migration_state.ROLLED_BACK, "again", 1.0),
    ]
    shown = shown_migrations([open_one, done, returned, *migrated_again])
    assert [view.plan.run_id for view in shown] == ["open", "returned"]
    assert [view.verdict for view in shown] == ["certified", "void"]


# ------------------------------------------------------------------------------------------------------ --filter


@pytest.fixture
def fleet(tmp_path: Path) -> str:
    """A fleet file with one host, where ``wide`` trains at step 30 and ``ablate-lr`` has stopped at step 7."""
    for name, state, step, process in (
        ("wide", records.TRAINING, 30, None),
        ("ablate-lr", records.STOPPED, 7, dead_process()),
    ):
        run = RunDirectory(tmp_path / "root", name)
        run.fence(1)
        run.lineage({"attempt": 1, "epoch": 1})
        run.rows(1, *range(step))
        run.status(1, state, step, process)
    file = tmp_path / "fleet.yaml"
    file.write_text(f"hosts:\n  here: {{type: local, root: {tmp_path / 'root'}}}\n")
    return str(file)


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("run~^ablate step<10 OR state:training step>100", ["ablate-lr"]),
        ("!host=here", []),
    ],
)
def test_status_filter_prints_the_runs_that_pass(
    fleet: str, words: str, names: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    command = ["--fleet", fleet, "--status", "--filter", words]
    assert main([*command, "--json"]) == Exit.DONE
    events = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert {event["event"] for event in events} <= {"run"}, "neither hosts nor migrations"
    assert sorted(event["run"] for event in events) == names
    assert main(command) == Exit.DONE
    out, err = capfd.readouterr()
    heading, *rows = out.splitlines() or [""]
    assert sorted(row.split()[0] for row in rows) == names
    assert heading.startswith("RUN") == bool(names)
    assert ("none of 2 runs passes the filter" in err) == (not names)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("zzz:1", "filter, column 1: no such field zzz; fields are run, name, host"),
        ("loss<abc", "filter, column 6: abc is not a number"),
        ("run~(", "filter, column 5: "),
    ],
)
def test_status_filter_that_is_wrong_is_refused_in_one_line(
    tmp_path: Path, words: str, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text("hosts:\n  lost: {type: ssh, address: '127.0.0.1:1'}\n")
    assert main(["--fleet", str(file), "--status", "--filter", words]) == Exit.USAGE
    out, err = capfd.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1, "it is refused before a host is connected"
    assert message in err
