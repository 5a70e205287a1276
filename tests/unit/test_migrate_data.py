"""Every token cache of a run comes along, and only what is nowhere is missing."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from midstream.errors import MidstreamError
from midstream.fleet.fleet import Fleet, LocalHost
from midstream.hosts.host_pool import Hosts
from midstream.migrate.host_group import HostGroup
from midstream.migrate.model import COLD, FAIL, PASS, WARM, WARN, Request
from midstream.migrate.phases.data_copy import copy_all
from midstream.migrate.planning import preflight
from midstream.migrate.planning.plan import make_plan
from midstream.watch.watcher import look_once
from midstream_engine import records
from support.run_directory import RunDirectory
from support.trees import files, write_data
from unit.sample_plan import PLAN


@pytest.fixture
def world(tmp_path: Path):
    """A run on ``a`` that trains on one cache and validates on another; ``b`` has nothing."""
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
    fleet = Fleet({name: LocalHost(root=str(tmp_path / name)) for name in "ab"})
    hosts = Hosts(fleet)
    digests = (trained, validated)
    yield SimpleNamespace(run=run, train=train, fleet=fleet, hosts=hosts, root=tmp_path, digests=digests)
    hosts.close()


def plan_of(world: Any, mode: str = WARM):
    return make_plan(world.fleet, world.hosts, look_once(world.fleet, world.hosts), Request("r", "b", mode=mode))


def data_checks(world: Any, plan: Any) -> list[tuple[str, str]]:
    a, b = world.hosts.get("a"), world.hosts.get("b")
    return [(check.state, check.detail) for check in preflight.check_data(a, b, plan)]


def test_validation_sets_travel_too_and_what_is_there_already_does_not(world: Any):
    plan = plan_of(world)
    assert (plan.data_digests, plan.data_bytes) == (world.digests, 3500)
    assert [state for state, _ in data_checks(world, plan)] == [PASS, PASS]
    notes: list[str] = []
    move: Any = SimpleNamespace(
        source=world.hosts.get("a"), target=world.hosts.get("b"), command=lambda *_: None,
        note=lambda message, **_: notes.append(message), progress=lambda what: None,
        target_group=HostGroup(world.hosts, world.fleet.target("b"), "r"),
    )  # fmt: skip
    copy_all(move, plan.data_digests)
    assert files(world.root / "a" / "data") == files(world.root / "b" / "data")
    assert plan_of(world).data_bytes == 0
    copy_all(move, plan.data_digests)
    assert notes == ["the target has the data already"] * 2
    with pytest.raises(MidstreamError, match="neither on a nor on b"):
        copy_all(move, ["c" * 64])


def test_a_cache_that_is_nowhere_is_refused_before_anything_is_touched(world: Any):
    plan = dataclasses.replace(PLAN, data_digests=("c" * 64,))
    ((state, detail),) = data_checks(world, plan)
    assert state == FAIL
    assert "on neither host" in detail


@pytest.mark.parametrize(("mode", "state"), [(WARM, PASS), (COLD, WARN)])
def test_caches_in_a_bucket_are_read_there_and_nobody_refuses_that(world: Any, mode: str, state: str):
    text = Path(world.run.paths.config).read_text()
    Path(world.run.paths.config).write_text(text + "data: {cache_dir: 'gs://bucket/caches'}\n")
    train = json.loads(world.train.read_text())
    train["provenance"]["config"]["data"]["cache_dir"] = "gs://bucket/caches"
    world.train.write_text(json.dumps(train))
    plan = plan_of(world, mode)
    assert (plan.data_digests, plan.data_bytes, plan.data_location) == ((), 0, "gs://bucket/caches")
    assert [found for found, _ in data_checks(world, plan)] == [state]
