"""The abstract model of ownership: its invariants to the end of its states, and its rules beside the real functions."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from midstream_core import records
from midstream_host.runs import attempts
from simulation import ownership_rules as rules
from simulation.ownership_model import Bounds, Explored, Model, ModelError
from simulation.ownership_rules import Chain, Fence, Host
from simulation.ownership_state import BACK, DONE
from simulation.real_records import RealHost, RealMachine, real_chain

SMALL = (Bounds(rollback=False), Bounds(crashes=0))
LARGE = (Bounds(), Bounds(steps=4), Bounds(deaths=1), Bounds(deaths=1, other=True), Bounds(crashes=2, steps=3))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[RealMachine]:
    """Return a machine whose processes are not started, with its files in memory."""

    def spawn(*arguments: Any, **_: Any) -> records.ProcessIdentity:
        identity = records.this_process()
        records.write_json(arguments[4], identity.to_json(), durable=False)
        return identity

    monkeypatch.setattr(attempts, "spawn", spawn)
    monkeypatch.setattr(attempts, "detached", list)
    real_chain.cache_clear()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        monkeypatch.setenv("MIDSTREAM_STATE", f"{directory}/state")
        yield RealMachine(Path(directory))


def compare(machine: RealMachine, explored: Explored) -> None:
    """Make every call and judgement of an exploration with the real functions."""
    host: RealHost = machine.hosts["A"]
    for (rule, before, *arguments), (answered, after) in explored.calls.items():
        host.write(before)
        assert host.apply(rule, before, *arguments) == answered, (rule, before, arguments)
        assert host.records() == (after.fence, after.lock, after.chain), (rule, before, arguments)
    for (judgement, *arguments), result in explored.judgements.items():
        assert machine.judge(judgement, *arguments) == result, (judgement, arguments)


@pytest.mark.parametrize("bounds", SMALL, ids=str)
def test_one_start_may_commit_in_every_state(machine: RealMachine, bounds: Bounds) -> None:
    explored = Model(bounds).explore()
    assert (DONE, None) in explored.ends or any(at == DONE for at, _ in explored.ends)
    assert not bounds.rollback or any(back == BACK for _, back in explored.ends)
    compare(machine, explored)


@pytest.mark.slow
@pytest.mark.parametrize("bounds", LARGE, ids=str)
def test_larger_bounds(machine: RealMachine, bounds: Bounds) -> None:
    compare(machine, Model(bounds).explore())


def _fence_goes_back(host: Host, fence: Fence, migration: str, chain: Chain, process: str | None = None) -> Host:
    """Write a fence without a look at the permission to start the target."""
    del process
    return rules.put_fence(host, fence, migration, chain)


def _release_at_once(host: Host, migration: str, epoch: int, owner: str) -> Host:
    """Release a lock while its command to stop waits."""
    del epoch, owner
    lock = rules.held(host)
    ours = lock is not None and lock.migration == migration
    return host._replace(lock=lock._replace(valid=False, released=True)) if ours and lock is not None else host


def _allow_any(host: Host, chain: Chain, epoch: int, owner: str, migration: str, process: str) -> Host:
    """Permit a start without a look at fence and lock."""
    del epoch, owner, migration
    return host._replace(chain=chain, lock=host.lock and host.lock._replace(allowed=process))


def _send_any(host: Host, action: str, migration: str, epoch: int, owner: str) -> Host:
    """Send a command to an engine of a later owner too."""
    return host._replace(command=(action, migration, epoch, owner))


def _commit_any(host: Host) -> Host:
    """Commit without a look at the fence."""
    engine = host.engine
    assert engine is not None
    return host._replace(engine=engine._replace(step=engine.step + 1))


BROKEN: dict[str, Callable[..., Host]] = {
    "put_fence": _fence_goes_back,
    "release": _release_at_once,
    "allow_start": _allow_any,
    "send": _send_any,
    "commit": _commit_any,
}


@pytest.mark.parametrize("rule", BROKEN)
def test_broken_rule_is_found(rule: str) -> None:
    """Each of these rules is needed: without it a state breaks an invariant. The model has found three of them."""
    with pytest.raises(ModelError):
        Model(Bounds(crashes=0), {rule: BROKEN[rule]}).explore()
