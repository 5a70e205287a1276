"""Rollback of a migration whose source and target have one run directory."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from midstream.fleet.fleet import Fleet, LocalHostConfig, Target
from midstream.hosts.host_pool import HostPool
from midstream.migrate.host_group import HostGroup
from midstream.migrate.journal.facts import Facts
from midstream.migrate.steps import source_return
from midstream_core import records
from support.run_directory import RunDirectory, dead_process


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet({"login": LocalHostConfig(root=str(tmp_path / "root"))})


def test_source_returns_to_its_own_checkpoint_and_config(
    fleet: Fleet, hosts: HostPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDirectory(tmp_path / "root", "r")
    config = Path(run.paths.config)
    config.write_text("trainer: {per_device_parallelism: 4}\n")  # the target's
    for attempt in (1, 2):
        run.status(attempt, records.STOPPED, 20 * attempt, dead_process())
    sealed, theirs = run.checkpoint(20), run.checkpoint(40, attempt=2, epoch=2)
    run.fence(2, "wide", 20, [records.Seal(1, 20).to_json()])
    group = HostGroup(hosts, Target("cluster", ("login",)), "r")
    assert theirs in [each.name for each in group.describe().usable], "the fence accepts it before the rollback"

    started: list[records.Command] = []

    def start(_migration: object, _group: object, command: records.Command, *, owner: str, at_least: int) -> int:
        assert (owner, at_least) == ("cluster", 3)
        started.append(command)
        return at_least

    monkeypatch.setattr(source_return, "start_attempt", start)
    host = hosts.get("login")
    facts = Facts(owner_before="cluster", sealing_attempt=1, target_attempt=2, source_config="trainer: {}\n")
    plan = SimpleNamespace(run_id="r", epoch=2, source_epoch=1, source="login", target="wide", migration="m")
    migration: Any = SimpleNamespace(
        plan=plan,
        source=host,
        source_group=group,
        target_group=group,
        fleet=hosts.fleet,
        hosts=hosts,
        chain_before=None,
        journal=SimpleNamespace(facts=facts),
        log_command=lambda *_, **__: None,
    )
    back = source_return.returned_fence(cast("Any", migration), records.Fence.read(run.paths.fence))
    assert (back.epoch, back.owner, back.sealed_step) == (3, "cluster", 20), "not at the target's step 40"
    source_return.put_fence(migration, group, back)
    assert source_return._start_source(migration, back, back.sealed_step) == 3
    [command] = started
    assert (command.checkpoint, command.step, command.epoch) == (sealed, 20, 3)
    assert config.read_text() == "trainer: {}\n"
