"""Signed records on a host: chains only grow, and one process may start a target."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from midstream.ownership.signed_chain import first_chain, next_chain
from midstream_core import records
from midstream_host.runs import attempts, ownership
from midstream_host.runs.run_state import RefusedError
from support.run_directory import RunDirectory


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """Create a run that migration ``m`` has sealed for ``two``."""
    run = RunDirectory(tmp_path, "r")
    run.fence(1, "one")
    ownership.acquire(str(tmp_path), "r", "m", 2, "two", 100.0)
    ownership.seal(str(tmp_path), "r", 2, "two", 5, "m")
    return run


@pytest.fixture
def chain() -> records.OwnershipChain:
    return next_chain(first_chain("r", "one", records.first_fence("one")), epoch=2, owner="two", step=5, migration="m")


@pytest.fixture
def allow(run: RunDirectory, chain: records.OwnershipChain) -> Callable[..., None]:
    def allow(process: str = "p1", epoch: int = 2, owner: str = "two", migration: str = "m") -> None:
        ownership.allow_start(run.paths.root, "r", chain.to_json(), epoch, owner, migration, process)

    return allow


def allowed(run: RunDirectory) -> str | None:
    lock = records.MigrationLock.read(run.paths.migration_lock)
    return lock.start_allowed


def test_source_records_record_and_process_before_a_start(
    run: RunDirectory, chain: records.OwnershipChain, allow: Callable[..., None]
) -> None:
    assert allowed(run) == "", "until then no process may start the target"
    allow()
    assert allowed(run) == "p1"
    assert records.OwnershipChain.read(run.paths.ownership) == chain
    allow()
    allow("p2")
    assert allowed(run) == "p2", "the process that continues the migration"


def test_suspended_process_is_refused_after_a_rollback(run: RunDirectory, allow: Callable[..., None]) -> None:
    """Another copy of the journal has rolled the migration back before the process goes on."""
    back = records.Fence.read(run.paths.fence).rolled_back("one", 5)
    ownership.put_fence(run.paths.root, "r", back.to_json(), "m")
    with pytest.raises(
        RefusedError, match=r"belongs to one \(ownership 3\) by now: two \(ownership 2\) is not started"
    ):
        allow()
    assert not os.path.exists(run.paths.ownership)


def test_open_target_with_a_permission_refuses_a_rollback(run: RunDirectory, allow: Callable[..., None]) -> None:
    """The permission may come after the rollback has looked whether the target was started."""
    back = records.Fence.read(run.paths.fence).rolled_back("one", 5)
    allow("p1")
    with pytest.raises(RefusedError, match="another process of migration m may start its target by now"):
        ownership.put_fence(run.paths.root, "r", back.to_json(), "m", process="p2")
    assert records.Fence.read(run.paths.fence).epoch == 2
    assert allowed(run) == "p1"
    ownership.put_fence(run.paths.root, "r", back.to_json(), "m", process="p1")
    assert records.Fence.read(run.paths.fence).epoch == 3, "its own permission"


def test_closed_target_with_a_permission_allows_a_rollback(run: RunDirectory, allow: Callable[..., None]) -> None:
    back = records.Fence.read(run.paths.fence).rolled_back("one", 5)
    allow("p1")
    assert ownership.put_fence(run.paths.root, "r", back.to_json(), "m").epoch == 3


def test_other_migration_gets_no_permission(run: RunDirectory, allow: Callable[..., None]) -> None:
    with pytest.raises(RefusedError, match="locked for two by migration m"):
        allow(migration="other")
    os.unlink(run.paths.migration_lock)
    with pytest.raises(RefusedError, match="migration m has no lock"):
        allow()


def test_lock_of_an_older_version_has_no_start(run: RunDirectory) -> None:
    records.write_json(run.paths.migration_lock, {"migration": "m", "epoch": 2, "owner": "two", "expires": 1.0})
    assert allowed(run) is None


def test_chain_only_grows(run: RunDirectory, chain: records.OwnershipChain) -> None:
    root, shorter = run.paths.root, records.OwnershipChain("r", chain.records[:1])
    other = next_chain(shorter, epoch=2, owner="three", step=5)
    for given in (shorter, chain, chain):
        ownership.put_chain(root, "r", given.to_json())
    for refused in (shorter, other, first_chain("r", "one", records.first_fence("one"))):
        with pytest.raises(RefusedError, match="newer or other ownership records of r: two"):
            ownership.put_chain(root, "r", refused.to_json())
        with pytest.raises(RefusedError):
            ownership.put_fence(root, "r", records.Fence(9, "bad").to_json(), chain=refused.to_json())
    assert records.OwnershipChain.read(run.paths.ownership) == chain
    assert records.Fence.read(run.paths.fence).epoch == 2, "a refused chain brings no fence"


def test_no_attempt_of_an_owner_of_the_past_is_started(run: RunDirectory) -> None:
    number = attempts.run_state.claim_attempt(run.paths.root, "r")
    with pytest.raises(RefusedError, match=r"belongs to two \(ownership 2\) by now; an attempt of ownership 1"):
        attempts.start(run.paths.root, "r", number, ["true"], {}, config="a: 1\n", epoch=1)
    assert not os.path.exists(run.paths.attempt(number).dir), "the claim on the number is released"


def test_adoption_needs_a_stopped_run_and_a_higher_number(run: RunDirectory) -> None:
    root, fence = run.paths.root, records.Fence.read(run.paths.fence)
    new = fence.sealed(3, "one", 5)
    chain = first_chain("r", "one", new, consent="agreed")
    run.status(1, records.TRAINING, 7)
    with pytest.raises(RefusedError, match="attempt 1 of r runs here: stop it first"):
        ownership.adopt(root, "r", new.to_json(), chain.to_json())
    same = first_chain("r", "two", fence, consent="agreed")
    assert ownership.adopt(root, "r", fence.to_json(), same.to_json()) == "", "the fence stays, so a run may train"
    os.unlink(run.attempt(1).status())
    kept = ownership.adopt(root, "r", new.to_json(), chain.to_json())
    assert kept.startswith("ownership.json.damaged-")
    assert records.Fence.read(run.paths.fence) == new
    with pytest.raises(RefusedError, match="at ownership 3 by now"):
        ownership.adopt(root, "r", fence.to_json(), same.to_json())
