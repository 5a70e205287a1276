"""Plans for accelerators that this machine lacks.

The run is real; the accelerators of the snapshot are replaced.
"""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import pytest

from midstream.check.check_result import FAIL, PASS
from midstream.errors import HostError, MidstreamError
from midstream.fleet.fleet import Fleet, HostsTarget, LocalHostConfig
from midstream.hosts.host_pool import HostPool
from midstream.migrate.journal.plan import Plan
from midstream.migrate.journal.request import Request
from midstream.migrate.modes.registry import LIVE, WARM, mode_of
from midstream.migrate.planning import preflight
from midstream.migrate.planning.plan_description import describe
from midstream.migrate.planning.planner import make_plan
from midstream.watch.machine import Accelerator
from midstream.watch.watcher import take_snapshot
from midstream_core import records
from support.migrations.sample_plan import PLAN, changed
from support.run_directory import RunDirectory

GIB = 1 << 30
CONFIG = """
model: {type: llama, num_layers: 16, hidden_dim: 2048, intermediate_dim: 8192, seq_len: 4096, num_heads: 32}
trainer: {mp: "p=f32,c=bfloat16", train_batch_size: 256, num_train_steps: 1000, per_device_parallelism: 32}
"""


def training_run(root: Path) -> RunDirectory:
    """Make a run of 1.2 billion parameters on host a."""
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
    return run


def plan_for(root: Path, kind: str, count: int, gibibytes: int | None, *overrides: str) -> Plan:
    """Plan the migration of that run to ``count`` devices of ``kind``."""
    training_run(root)
    fleet = Fleet({"a": LocalHostConfig(root=str(root / "a")), "b": LocalHostConfig(root=str(root / "b"))})
    accelerators = tuple(Accelerator(index, kind, gibibytes and gibibytes * GIB) for index in range(count))
    return planned(fleet, Request("r", "b", mode="cold", overrides=overrides), accelerators, "b")


def planned(fleet: Fleet, request: Request, accelerators: tuple[Accelerator, ...], *names: str) -> Plan:
    """Plan with these accelerators on each of the named hosts."""
    hosts = HostPool(fleet)
    try:
        snapshot = take_snapshot(hosts)
        views = []
        for host in snapshot.hosts:
            assert host.machine is not None, host.error
            machine = dataclasses.replace(host.machine, accelerators=accelerators)
            views.append(dataclasses.replace(host, machine=machine) if host.name in names else host)
        return make_plan(hosts, dataclasses.replace(snapshot, hosts=tuple(views)), request)
    finally:
        hosts.close()


def test_groups_of_any_size_are_planned_live(tmp_path: Path) -> None:
    """Two hosts to four, each with a process of its own."""
    run = training_run(tmp_path)
    files = run.attempt(1)
    dataclasses.replace(records.Status.read(files.status()), processes=2).write(files.status())
    records.write_json(files.launched(), {**records.this_process().to_json(), "group": ["a", "b"]})
    hosts = {name: LocalHostConfig(root=str(tmp_path / name)) for name in "abcdef"}
    fleet = Fleet(hosts, {"old": HostsTarget(["a", "b"]), "new": HostsTarget(["c", "d", "e", "f"])})
    accelerators = tuple(Accelerator(index, "NVIDIA H100 80GB HBM3", 80 * GIB) for index in range(8))
    plan = planned(fleet, Request("r", "new", mode="live"), accelerators, *"abcdef")
    assert (plan.mode, plan.route.source_hosts, plan.route.target_hosts) == ("live", ("a", "b"), ("c", "d", "e", "f"))
    assert plan.shape.target_devices == 32
    assert sum(plan.estimate.predicted_seconds.values()) == 0.0


def test_plan_splits_the_batch_to_fit_the_devices(tmp_path: Path) -> None:
    roomy = plan_for(tmp_path / "1", "NVIDIA A100-SXM4-80GB", 8, 80)
    assert (roomy.shape.per_device_parallelism, roomy.shape.accumulation) == (32, 1)
    assert roomy.route.probed == "a -> b on this machine"
    tight = plan_for(tmp_path / "2", "TPU v3", 8, None)  # 16 GiB by its data sheet
    assert tight.shape.per_device_parallelism < 32
    flag = ("--trainer.per_device_parallelism", str(tight.shape.per_device_parallelism))
    assert tight.target_flags[-2:] == flag, "the target divides the batch as planned"
    assert flag[0] not in roomy.target_flags
    for plan in (roomy, tight):
        assert (
            plan.shape.train_batch_size
            == plan.shape.target_devices * plan.shape.per_device_parallelism * plan.shape.accumulation
            == 256
        )


def test_plan_refuses_devices_with_too_little_memory(tmp_path: Path) -> None:
    with pytest.raises(MidstreamError, match=r"does not fit 2 devices of 8\.6 GB: it needs .* state 7\.1 GB") as caught:
        plan_for(tmp_path, "NVIDIA T4", 2, 8, "--trainer.mp", "f32")
    assert caught.value.hint.startswith("it fits ")


def test_stores_may_be_two_buckets_unless_live() -> None:
    mode_of(WARM).check_stores("r", "gs://bucket/prefix")
    with pytest.raises(MidstreamError, match="a live migration of r is not possible with checkpoints in gs://bucket"):
        mode_of(LIVE).check_stores("r", "gs://bucket/prefix")


def test_plan_refuses_bfloat16_without_support(tmp_path: Path) -> None:
    with pytest.raises(MidstreamError, match="V100-SXM2-32GB does not support bfloat16") as caught:
        plan_for(tmp_path / "1", "Tesla V100-SXM2-32GB", 8, 32)
    assert "--trainer.mp float32" in caught.value.hint
    plan = plan_for(tmp_path / "2", "Tesla V100-SXM2-32GB", 8, 32, "--trainer.mp=f32")
    change = next(change for change in plan.shape.changes if change.name == "precision")
    assert (change.before, change.after) == ("p=f32,c=bfloat16", "f32")


def test_plan_shows_the_precision_of_products(tmp_path: Path) -> None:
    def found(number: int, *overrides: str) -> list[tuple[str, str]]:
        plan = plan_for(tmp_path / str(number), "NVIDIA A100-SXM4-80GB", 8, 80, "--trainer.mp=f32", *overrides)
        return [(each.before, each.after) for each in plan.shape.changes if each.name == "matmul precision"]

    assert found(1) == []
    assert found(2, "--trainer.matmul_precision=default") == [("highest", "default")]


def test_plan_keeps_the_precision_of_products(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rounded = CONFIG.replace('mp: "p=f32,c=bfloat16"', "mp: f32, matmul_precision: default")
    assert rounded != CONFIG
    monkeypatch.setitem(globals(), "CONFIG", rounded)
    plan = plan_for(tmp_path, "NVIDIA A100-SXM4-80GB", 8, 80)
    change = next(each for each in plan.shape.changes if each.name == "matmul precision")
    assert (change.before, change.after) == ("default", "default")
    assert [line.split()[:2] for line in map(str, describe(plan)) if "matmul" in line] == [["matmul", "default"]]


def test_plan_keeps_the_types_of_the_parameters(tmp_path: Path) -> None:
    with pytest.raises(MidstreamError, match="bf16 has bfloat16 parameters, and the run's are float32") as caught:
        plan_for(tmp_path, "NVIDIA A100-SXM4-80GB", 8, 80, "--trainer.mp", "bf16")
    assert "--trainer.mp p=float32,c=bfloat16" in caught.value.hint


def test_plan_explains_changed_batch_and_steps(tmp_path: Path) -> None:
    flags = ("--trainer.train_batch_size=512", "--trainer.num_train_steps", "2000")
    plan = plan_for(tmp_path, "NVIDIA A100-SXM4-80GB", 8, 80, *flags)
    assert (
        plan.shape.train_batch_size
        == plan.shape.target_devices * plan.shape.per_device_parallelism * plan.shape.accumulation
        == 512
    )
    changes = {change.name: (change.before, change.after) for change in plan.shape.changes}
    assert changes["batch"] == ("256", "512")
    assert changes["steps"] == ("1000", "2000")
    assert changes["samples"] == (str(256 * 1000), str(256 * 30 + 512 * 1970))
    unsigned, changed = plan.policy.consent
    assert unsigned == "r has no signed record of its owner: a, on a, becomes its signed owner"
    assert "differs from the one that was started" in changed
    assert plan.command().endswith("--yes -- --trainer.train_batch_size=512 --trainer.num_train_steps 2000")
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    assert "samples    256000 -> 1016320" in "\n".join(describe(plan))


def test_preflight_skips_a_recently_probed_route(monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(*_: Any) -> str:
        raise HostError("no route is open", "open a port")

    monkeypatch.setattr(preflight, "copy_route", closed)

    def checked(route: str, age: float) -> str:
        plan = changed(PLAN, probed=route, created=time.time() - age)
        nothing: Any = None
        return preflight._route(nothing, nothing, nothing, nothing, plan).state

    assert checked("direct, a -> b over TLS", 1.0) == PASS
    assert checked("direct, a -> b over TLS", 3600.0) == FAIL
    assert checked("none: no route is open", 1.0) == FAIL
    assert checked("", 1.0) == FAIL
