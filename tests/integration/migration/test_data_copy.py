"""Copy of the token caches of a run; a cache that no host has is missing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from midstream.check.check_result import FAIL, PASS, WARN
from midstream.errors import MidstreamError
from midstream.fleet.fleet import Fleet, HostsTarget, LocalHostConfig
from midstream.hosts.host_pool import HostPool
from midstream.migrate.host_group import HostGroup
from midstream.migrate.journal.plan import Plan
from midstream.migrate.journal.request import Request
from midstream.migrate.modes.registry import COLD, WARM
from midstream.migrate.planning import preflight
from midstream.migrate.planning.planner import make_plan
from midstream.migrate.steps.data_copy import copy_token_caches
from midstream.watch.watcher import take_snapshot
from midstream_core import records
from support.checkpoints.trees import files, write_data
from support.migrations.sample_plan import PLAN, changed
from support.run_directory import RunDirectory


@pytest.fixture
def world(tmp_path: Path) -> Iterator[SimpleNamespace]:
    """Create a run on ``a`` with caches for training and validation; ``b`` and ``c``, together ``pair``, have none."""
    run = RunDirectory(tmp_path / "a", "r")
    Path(run.paths.config).write_text("model: {seq_len: 8}\ntrainer: {train_batch_size: 4, num_train_steps: 100}\n")
    run.status(1, records.TRAINING, 30)
    run.fence(1, "a")
    train = Path(run.paths.checkpoint(run.checkpoint(20))) / records.TRAIN
    trained, validated = (
        write_data(tmp_path / "a" / "data", {"tokens-00000.bin": bytes(size)}) for size in (3000, 500)
    )
    provenance = {"validation": {"held out": {"digest": validated}}, "config": {"data": {"cache_dir": None}}}
    train.write_text(json.dumps({"state": {"data_digest": trained}, "provenance": provenance}))
    machines = {name: LocalHostConfig(root=str(tmp_path / name)) for name in "abc"}
    fleet = Fleet(machines, {"pair": HostsTarget(hosts=["b", "c"])})
    hosts = HostPool(fleet)
    digests = (trained, validated)
    yield SimpleNamespace(run=run, train=train, fleet=fleet, hosts=hosts, root=tmp_path, digests=digests)
    hosts.close()


def plan_of(world: Any, mode: str = WARM, target: str = "b") -> Plan:
    snapshot = take_snapshot(world.hosts)
    return make_plan(world.hosts, snapshot, Request("r", target, mode=mode))


def data_checks(world: Any, plan: Any, targets: str = "b") -> list[tuple[str, str]]:
    source, hosts = world.hosts.get("a"), [world.hosts.get(name) for name in targets]
    return [(check.state, check.detail) for check in preflight.check_data(source, hosts, plan)]


def test_copy_token_caches_copies_only_missing_caches(world: Any) -> None:
    plan = plan_of(world)
    assert (plan.route.data_digests, plan.estimate.data_bytes) == (world.digests, 3500)
    assert [state for state, _ in data_checks(world, plan)] == [PASS, PASS]
    notes: list[str] = []
    migration: Any = SimpleNamespace(
        source=world.hosts.get("a"), target=world.hosts.get("b"), log_command=lambda *_, **__: None,
        note=lambda message, **_: notes.append(message), progress=lambda _: None,
        target_group=HostGroup(world.hosts, world.fleet.target("b"), "r"),
    )  # fmt: skip
    copy_token_caches(migration, plan.route.data_digests)
    assert files(world.root / "a" / "data") == files(world.root / "b" / "data")
    assert plan_of(world).estimate.data_bytes == 0
    copy_token_caches(migration, plan.route.data_digests)
    assert notes == ["the target has the data already"] * 2
    with pytest.raises(MidstreamError, match="neither on a nor on b"):
        copy_token_caches(migration, ["c" * 64])


def test_data_that_one_host_of_a_group_lacks_is_planned(world: Any) -> None:
    shutil.copytree(world.root / "a" / "data", world.root / "b" / "data")
    shutil.copytree(world.root / "a" / "data" / world.digests[1], world.root / "c" / "data" / world.digests[1])
    plan = plan_of(world, target="pair")
    assert plan.estimate.data_bytes == 3000
    lacking, there = data_checks(world, plan, "bc")
    assert lacking == (PASS, f"token cache {world.digests[0][:12]}: c lacks it: to copy from b, 3.0 kB in all")
    assert there == (PASS, f"token cache {world.digests[1][:12]}: the target has it")


def test_missing_cache_fails_the_preflight(world: Any) -> None:
    plan = changed(PLAN, data_digests=("c" * 64,))
    ((state, detail),) = data_checks(world, plan)
    assert state == FAIL
    assert "on neither host" in detail


@pytest.mark.parametrize(("mode", "state"), [(WARM, PASS), (COLD, WARN)])
def test_caches_in_a_bucket_are_not_copied(world: Any, mode: str, state: str) -> None:
    text = Path(world.run.paths.config).read_text()
    Path(world.run.paths.config).write_text(text + "data: {cache_dir: 'gs://bucket/caches'}\n")
    train = json.loads(world.train.read_text())
    train["provenance"]["config"]["data"]["cache_dir"] = "gs://bucket/caches"
    world.train.write_text(json.dumps(train))
    plan = plan_of(world, mode)
    assert (plan.route.data_digests, plan.estimate.data_bytes, plan.route.data_location) == (
        (),
        0,
        "gs://bucket/caches",
    )
    assert [found for found, _ in data_checks(world, plan)] == [state]
