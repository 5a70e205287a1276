"""A plan for devices that nobody here has: the run lies on a real host, the accelerators are told."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import pytest

from midstream.errors import HostError, MidstreamError
from midstream.fleet.fleet import Fleet, LocalHost
from midstream.hosts.host_pool import Hosts
from midstream.migrate.model import FAIL, PASS, Plan, Request
from midstream.migrate.planning import preflight
from midstream.migrate.planning.plan import describe, make_plan
from midstream.watch.snapshot import Accelerator
from midstream.watch.watcher import look_once
from midstream_engine import records
from support.run_directory import RunDirectory
from unit.sample_plan import PLAN

GIB = 1 << 30
CONFIG = """
model: {type: llama, num_layers: 16, hidden_dim: 2048, intermediate_dim: 8192, seq_len: 4096, num_heads: 32}
trainer: {mp: "p=f32,c=bfloat16", train_batch_size: 256, num_train_steps: 1000, per_device_parallelism: 32}
"""


def plan_for(root: Path, kind: str, count: int, gibibytes: int | None, *overrides: str) -> Plan:
    """The plan that moves a run of 1.2 billion parameters to ``count`` devices of ``kind``."""
    run = RunDirectory(root / "a", "r")
    Path(run.paths.config).write_text(CONFIG)
    run.status(1, records.TRAINING, 30)
    run.fence(1, "a")
    name = run.checkpoint(20)
    directory = Path(run.paths.checkpoint(name))
    (directory / records.TRAIN).write_text(json.dumps({"state": {"data_digest": "d" * 64}}))
    manifest = records.Manifest.read(str(directory / records.MANIFEST))
    axes, shape = ["layers", "embed", "mlp"], [16, 2048, 36_000]
    arrays = [
        records.ArrayEntry(f"{tree}/weight", axes, shape, "float32", [], []).to_json()
        for tree in ("model", "optimizer/mu", "optimizer/nu")
    ]
    dataclasses.replace(manifest, arrays=arrays).write(str(directory / records.MANIFEST))
    fleet = Fleet({"a": LocalHost(root=str(root / "a")), "b": LocalHost(root=str(root / "b"))})
    hosts = Hosts(fleet)
    try:
        seen = look_once(fleet, hosts)
        told = tuple(Accelerator(index, kind, gibibytes and gibibytes * GIB) for index in range(count))
        views = []
        for host in seen.hosts:
            assert host.machine is not None, host.error
            machine = dataclasses.replace(host.machine, accelerators=told)
            views.append(dataclasses.replace(host, machine=machine) if host.name == "b" else host)
        seen = dataclasses.replace(seen, hosts=tuple(views))
        return make_plan(fleet, hosts, seen, Request("r", "b", mode="cold", overrides=overrides))
    finally:
        hosts.close()


def test_the_batch_stays_and_is_cut_to_what_the_devices_hold(tmp_path: Path):
    roomy = plan_for(tmp_path / "1", "NVIDIA A100-SXM4-80GB", 8, 80)
    assert (roomy.per_device_parallelism, roomy.accumulation) == (32, 1)
    assert roomy.route == "a -> b on this machine"
    tight = plan_for(tmp_path / "2", "TPU v3", 8, None)  # 16 GiB, as its maker says
    assert tight.per_device_parallelism < 32
    for plan in (roomy, tight):
        assert plan.train_batch_size == plan.target_devices * plan.per_device_parallelism * plan.accumulation == 256


def test_devices_that_cannot_hold_the_run_are_refused_with_the_numbers(tmp_path: Path):
    with pytest.raises(MidstreamError, match=r"does not fit 2 devices of 8\.6 GB: it needs .* state 7\.1 GB") as caught:
        plan_for(tmp_path, "NVIDIA T4", 2, 8, "--trainer.mp", "f32")
    assert "of them would hold it" in caught.value.hint


def test_a_run_does_not_change_its_bucket(tmp_path: Path):
    paths = records.RunPaths(str(tmp_path / "a"), "r")
    Path(paths.dir).mkdir(parents=True)
    records.Store("gs://bucket/prefix").write(paths.store_file)
    other = ("--trainer.checkpointer.base_path", "gs://other/prefix")
    words = "r keeps its checkpoints in gs://bucket/prefix, and b would in gs://other/prefix"
    with pytest.raises(MidstreamError, match=words) as caught:
        plan_for(tmp_path, "NVIDIA A100-SXM4-80GB", 8, 80, *other)
    assert "store: gs://bucket/prefix for b" in caught.value.hint
    assert not (tmp_path / "b").exists()


def test_a_run_in_bfloat16_is_not_moved_to_devices_without_it_unless_asked(tmp_path: Path):
    with pytest.raises(MidstreamError, match="V100-SXM2-32GB has no bfloat16") as caught:
        plan_for(tmp_path / "1", "Tesla V100-SXM2-32GB", 8, 32)
    assert "--trainer.mp f32" in caught.value.hint
    plan = plan_for(tmp_path / "2", "Tesla V100-SXM2-32GB", 8, 32, "--trainer.mp=f32")
    change = next(change for change in plan.changes if change.name == "precision")
    assert (change.before, change.after) == ("p=f32,c=bfloat16", "f32")


def test_another_batch_and_more_steps_are_asked_about_and_explained(tmp_path: Path):
    flags = ("--trainer.train_batch_size=512", "--trainer.num_train_steps", "2000")
    plan = plan_for(tmp_path, "NVIDIA A100-SXM4-80GB", 8, 80, *flags)
    assert plan.train_batch_size == plan.target_devices * plan.per_device_parallelism * plan.accumulation == 512
    changes = {change.name: (change.before, change.after) for change in plan.changes}
    assert changes["batch"] == ("256", "512")
    assert changes["steps"] == ("1000", "2000")
    assert changes["samples"] == (str(256 * 1000), str(256 * 30 + 512 * 1970))
    assert "not the one that was begun" in plan.consent[0]
    assert plan.command().endswith("--yes -- --trainer.train_batch_size=512 --trainer.num_train_steps 2000")
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    assert "samples    256000 -> 1016320" in "\n".join(describe(plan))


def test_a_way_that_the_plan_has_just_tried_is_not_tried_again(monkeypatch: pytest.MonkeyPatch):
    def closed(*_: Any) -> str:
        raise HostError("no way is open", "open a port")

    monkeypatch.setattr(preflight, "way", closed)

    def checked(route: str, age: float) -> str:
        plan = dataclasses.replace(PLAN, route=route, created=time.time() - age)
        nothing: Any = None
        return preflight._route(nothing, nothing, nothing, nothing, plan).state

    assert checked("direct, a -> b over TLS", 1.0) == PASS
    assert checked("direct, a -> b over TLS", 3600.0) == FAIL
    assert checked("none: no way is open", 1.0) == FAIL
    assert checked("", 1.0) == FAIL
