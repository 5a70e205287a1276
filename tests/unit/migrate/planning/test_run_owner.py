"""The copy of a run that a migration starts from, where the fleet file lacks the run's owner."""

from __future__ import annotations

import pytest

from midstream.errors import UsageError
from midstream.fleet.fleet import Fleet, LocalHostConfig
from midstream.migrate.journal.request import Request
from midstream.migrate.planning.source_run import find_run
from midstream.watch.snapshot import LIVE, HostView, RunView, Snapshot
from midstream_core import records

SEALED = records.Fence(1, "small").sealed(2, "large", 30)


def refusal(*hosts: str, epoch: int) -> str:
    """Return why a run on the first host cannot be migrated; its newest attempt trained under ``epoch``."""
    fleet = Fleet({name: LocalHostConfig() for name in hosts})
    status = records.Status(records.STOPPED, 40, 0, "boot", 1, 1, 5.0, epoch=epoch)
    run = RunView("r", hosts[0], SEALED, None, 1, status, False, ())
    snapshot = Snapshot(1, 0.0, tuple(HostView(name, "local", LIVE) for name in hosts), (run,))
    with pytest.raises(UsageError) as caught:
        find_run(fleet, snapshot, Request("r", "b"))
    return str(caught.value)


IF_LOST = "large is certainly lost, midstream --migrate r --to TARGET --source-lost"


def test_renamed_host_gets_its_name_again() -> None:
    assert refusal("big", "b", epoch=2) == (
        "run r has trained on big as large (ownership 2), which the fleet file does not name "
        "(name that host or target large there again: the records of the run have this name)"
    )


def test_copy_of_a_missing_owner_is_refused() -> None:
    assert f"add it there; if {IF_LOST}" in refusal("small", "b", epoch=1)


def test_owner_without_a_copy_may_have_another_root() -> None:
    said = refusal("small", "large", epoch=1)
    assert "was handed to large (ownership 2), which has no copy (check root: of large in the fleet file" in said
    assert f"if that machine's state directory is lost, or {IF_LOST}" in said
