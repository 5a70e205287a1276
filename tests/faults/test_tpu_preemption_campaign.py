"""Migrations to a slice that is preempted or unreachable, many times.

    python tests/faults/test_tpu_preemption_campaign.py [--runs 500] [--seed 1] [--results FILE]

The executor runs the migration with its journal, its rollback, two run directories and the lab's Cloud TPU service;
instead of engines, each phase writes the files that a real one would have written when it was struck. Drawn are the
phase, whether its work was done, the report of the service (preempted, terminated, deleted, preempted by its queued
resource alone, or ready), whether the API answers, and whether the worker becomes reachable again.

If the service reports the end of the slice, the run returns to its source, which alone may commit; after certification
on the slice the user decides. Without such a report an unreachable worker is no evidence: the migration continues when
the worker is reachable again; otherwise the source continues only if no engine was started on the worker.

Results are appended, one line per run: an interrupted campaign continues where it was.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

import grpc
import pytest
from google.cloud import tpu_v2

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script

from faults.test_tpu_campaign import hurry
from midstream.errors import ConnectionLostError, Exit, MidstreamError
from midstream.fleet.fleet import LocalHostConfig
from midstream.fleet.fleet_file import load_fleet
from midstream.hosts.host import P, R
from midstream.hosts.host_pool import HostPool
from midstream.hosts.local_host import LocalHost
from midstream.migrate import executor
from midstream.migrate.journal import migration_directory, migration_state, phase_names
from midstream.migrate.journal.facts import Facts, Sealed, required
from midstream.migrate.journal.journal import Journal, read_events
from midstream.migrate.modes.registry import COLD, WARM
from midstream.migrate.phases import prepare
from midstream.migrate.steps import preemption
from midstream.migrate.steps.migration import Migration
from midstream.migrate.steps.observation import wait_for
from midstream.migrate.steps.streamed_copy import StreamedCopy, complete
from midstream.providers.tpu import client as tpu_client
from midstream.transfer.copy_tree import copy_tree
from midstream.transfer.endpoint import Endpoint, bucket_endpoint
from midstream.watch.watcher import Watcher
from midstream_core import records
from midstream_host.runs import standby_state
from simulators.google.tpu_api import Fault, TpuServer
from simulators.google.tpu_nodes import QueuedState, State
from simulators.object_stores.bucket import bucket_server
from support.checkpoints.trees import assert_same_tree, write_checkpoint
from support.migrations.campaigns import Campaign, Case
from support.migrations.sample_plan import PLAN, changed
from support.paths import REPOSITORY
from support.run_directory import RunDirectory

RESULTS = REPOSITORY / "docs/campaigns/tpu-preemptions.jsonl"
PARENT = "projects/p/locations/z"
PHASES = (phase_names.PREPARE, phase_names.CUTOVER, phase_names.RELAUNCH, phase_names.CERTIFY, phase_names.FINISH)
SAYS = ("preempted", "terminated", "deleted", "queue", "queue", "ready", "ready")
STEP = 20


def draw(random_: random.Random) -> Case:
    """Draw the faults of a run, as JSON."""
    return {
        "phase": random_.choice(PHASES),
        "half": random_.random() < 0.5,  # the phase's work was done, but not reported
        "says": random_.choice(SAYS),
        "deaf": random_.choice((0, 0, 0, 1, 3)),  # calls of the API that fail for a while
        "back_after": random_.choice((None, None, 1, 3)),  # attempts to reach the worker
        "standby": random_.random() < 0.5,
    }


class Worker(LocalHost):
    """Worker of the slice, which may become unreachable."""

    unreachable = False
    tries = 0
    back_after: int | None = None

    def _reached(self) -> None:
        if self.unreachable:
            raise ConnectionLostError(f"{self.name}: the connection is lost")

    def connect(self) -> None:
        if self.unreachable and self.back_after is not None:
            self.tries += 1
            self.unreachable = self.tries < self.back_after
        self._reached()
        super().connect()

    def call(self, function: Callable[P, R], /, *, timeout: float | None = 60.0) -> Callable[P, R]:
        self._reached()
        return super().call(function, timeout=timeout)


class Step:
    """Phase that writes the files of a real one, without engines."""

    def __init__(self, name: str, case: dict[str, Any], strike: Callable[[], None]) -> None:
        self.name, self._case, self._strike = name, case, strike
        self._struck = False

    def run(self, move: Migration) -> None:
        first = self._case["phase"] == self.name and not self._struck
        if first and not self._case["half"]:
            self._hit(move)
        getattr(self, f"_{self.name}")(move)
        if first:
            self._hit(move)

    def _hit(self, move: Migration) -> None:
        if not self._struck:
            self._struck = True
            self._strike()
        move.target.call(standby_state.clock)()

    def _prepare(self, move: Migration) -> None:
        move.target.call(standby_state.clock)()

    def _cutover(self, move: Migration) -> None:
        plan, source = move.plan, move.source_group
        source.acquire(plan.migration, plan.epoch, plan.target, 600.0)
        if move.journal.facts.sealed is None:
            move.journal.record(Facts(owner_before="gpu"))
            source.seal(plan.migration, plan.epoch, plan.target, STEP)
            fence = source.acquire(plan.migration, plan.epoch, plan.target, 600.0)
            move.journal.record(Facts(sealed=Sealed(STEP, "step-20-a001", "", 1, fence)))
        move.target.call(standby_state.clock)()

    def _relaunch(self, move: Migration) -> None:
        move.journal.record(Facts(relaunching=True))
        move.target_group.put_fence(required(move.journal.facts.sealed, "sealed").fence, move.plan.migration)
        move.journal.record(Facts(target_attempt=2))

    def _certify(self, move: Migration) -> None:
        move.target.call(standby_state.clock)()

    _finish = _certify


def begun(server: TpuServer, room: Path, mode: str) -> tuple[Migration, RunDirectory, Worker]:
    """Create a migration of run ``r`` from ``gpu`` to the ready slice ``pod``."""
    server.nodes.clear()
    server.queued.clear()
    server.faults.clear()
    server.create(PARENT, "pod", tpu_v2.Node(accelerator_type="v3-8"))
    server.make_ready(f"{PARENT}/nodes/pod").queued_resource = f"{PARENT}/queuedResources/pod"
    spec = tpu_v2.QueuedResource.Tpu.NodeSpec(parent=PARENT, node_id="pod", node=tpu_v2.Node(accelerator_type="v3-8"))
    server.queued[f"{PARENT}/queuedResources/pod"] = tpu_v2.QueuedResource(
        name=f"{PARENT}/queuedResources/pod",
        tpu=tpu_v2.QueuedResource.Tpu(node_spec=[spec]),
        state=tpu_v2.QueuedResourceState(state=QueuedState.ACTIVE),
    )
    os.environ["MIDSTREAM_STATE"] = str(room / "state")
    file = room / "fleet.yaml"
    file.write_text(
        f"hosts:\n  gpu: {{type: local, root: {room}/gpu}}\n  pod-0: {{type: local, root: {room}/pod}}\n"
        "targets: {pod: {type: tpu, project: p, zone: z, hosts: [pod-0]}}\n"
    )
    fleet = load_fleet(file)
    run = RunDirectory(room / "gpu", "r")
    run.fence(1, "gpu")
    run.checkpoint(STEP)
    plan = changed(PLAN, migration="m", source="gpu", target="pod", target_host="pod-0", target_hosts=("pod-0",))
    plan = changed(plan, mode=mode)
    hosts = HostPool(fleet)
    worker = hosts._hosts["pod-0"] = Worker("pod-0", fleet.hosts["pod-0"])  # type: ignore[arg-type]
    directory = migration_directory.create(plan, fleet.text)
    return Migration(plan, directory, Journal(directory.journal_file), fleet, hosts, Watcher(fleet, hosts)), run, worker


def one_run(case: Case, _random: random.Random, server: TpuServer) -> str:
    """Return a run's outcome; assert that one host owns the run, with evidence."""
    # ``begun`` sets the state directory.
    with mock.patch.dict(os.environ), tempfile.TemporaryDirectory(prefix="preemption-") as room:
        return moved(case, server, Path(room))


def moved(case: Case, server: TpuServer, room: Path) -> str:
    move, run, worker = begun(server, room, WARM if case["standby"] else COLD)

    def strike() -> None:
        worker.unreachable, worker.back_after = True, case["back_after"]
        node = server.nodes[f"{PARENT}/nodes/pod"]
        if case["says"] == "preempted":
            node.state = State.PREEMPTED
        elif case["says"] == "terminated":
            node.state = State.TERMINATED
        elif case["says"] == "deleted":
            server.nodes.clear()
            server.queued.clear()
        elif case["says"] == "queue":
            server.preempt("pod", says_so=False)
        if case["deaf"]:
            server.faults.append(Fault("Get", grpc.StatusCode.PERMISSION_DENIED, times=case["deaf"]))

    steps = tuple(Step(name, case, strike) for name in PHASES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(executor, "phases", lambda: steps)
        code = executor.execute(move)
    move.hosts.close()
    return judged(case, code, move, run, worker)


def judged(case: dict[str, Any], code: Exit, move: Migration, run: RunDirectory, worker: Worker) -> str:
    view, fence = move.directory.view(), records.Fence.read(run.paths.fence)
    ended = case["says"] != "ready"
    sealed = move.journal.facts.sealed is not None
    started = move.journal.facts.relaunching is not None
    reports = [event.message for event in view.events if "according to its provider" in event.message]
    if not worker.unreachable:  # reachable again before a decision, or reported as preempted and rolled back
        assert code in (Exit.DONE, Exit.FAILED, Exit.INTERRUPTED)
    if view.state == migration_state.COMPLETED:
        assert (fence.epoch, fence.owner) == (2, "pod")
        assert case["back_after"] is not None, "a migration that continues needs its target"
        return "went on"
    if view.state == migration_state.INTERRUPTED and case["phase"] == phase_names.FINISH:
        assert "--rollback m" in view.error, "a certified target is not rolled back automatically"
        return "waits for the user"
    if view.state == migration_state.INTERRUPTED:
        assert started or not sealed, "a sealed run whose target did not start returns to its source"
        assert not reports, "without a report of the provider"
        assert not ended or case["deaf"], view.error
        assert "midstream --continue m continues it when the host answers" in view.error
        return "waits for evidence"
    if view.state == migration_state.ROLLBACK_INCOMPLETE:
        assert started, "an engine may run there"
        back = "shows no attempt" in view.error  # another worker answers under the name: its user decides
        assert not reports or back, f"without a report of the provider: {view.error}"
        assert not ended or case["deaf"] or (back and not worker.unreachable), view.error
        return "waits for evidence"
    assert view.state == migration_state.ROLLED_BACK, view.state
    owner = ("gpu", 3) if sealed else ("gpu", 1)
    assert (fence.owner, fence.epoch) == owner
    assert fence.accepts(fence.epoch, STEP + 1), "the source may commit"
    assert records.MigrationLock.held_or_none(run.paths.migration_lock) is None, "the lock is released"
    if started and worker.unreachable:
        assert ended, "an unreachable worker is no evidence"
        assert reports
    return "back at once" if reports else "back while unreachable"


@contextmanager
def opened() -> Iterator[TpuServer]:
    with TpuServer() as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv(tpu_client.ENDPOINT, server.endpoint)
        patch.setenv("MIDSTREAM_STATE", "")
        hurry(patch.setattr)
        patch.setattr(executor, "MIGRATION", replace(executor.MIGRATION, first_delay=0.05, total_time=0.3))
        patch.setattr(preemption, "QUERY_INTERVAL", 0.1)
        patch.setattr(prepare, "STANDBY_END", replace(prepare.STANDBY_END, first_delay=0.05, total_time=0.1))
        yield server


CAMPAIGN = Campaign(draw, one_run, opened)


def test_wait_ends_when_slice_is_preempted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIDSTREAM_STATE", "")  # restored after the test
    with TpuServer() as server:
        monkeypatch.setenv(tpu_client.ENDPOINT, server.endpoint)
        move, _, _ = begun(server, tmp_path, COLD)  # its watcher does not run
        with pytest.raises(MidstreamError, match="x: not within 0 s on pod-0"):
            wait_for(move, "x", "pod-0", lambda _: True, 0.1)
        server.preempt("pod")
        with pytest.raises(
            preemption.PreemptedError, match=r"pod was preempted: p/z/pod is PREEMPTED.*according to its provider"
        ):
            wait_for(move, "x", "pod-0", lambda _: True, 600.0)
        with pytest.raises(MidstreamError, match="x: not within 0 s on gpu"):
            wait_for(move, "x", "gpu", lambda _: True, 0.1)
        move.hosts.close()


def test_source_preempted_after_seal_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint comes from the bucket; after PREEMPTED the log counts as lost."""
    monkeypatch.setenv("MIDSTREAM_STATE", "")  # restored after the test
    with TpuServer() as server, bucket_server("runs") as bucket:
        for name, value in {**bucket.environment, tpu_client.ENDPOINT: server.endpoint}.items():
            monkeypatch.setenv(name, value)
        there, _, _ = begun(server, tmp_path, COLD)
        plan = changed(
            there.plan, source="pod-0", source_target="pod", target="gpu", target_host="gpu", target_hosts=("gpu",),
            source_store="gs://runs/ours",
        )  # fmt: skip
        move = Migration(plan, there.directory, there.journal, there.fleet, there.hosts, there.watch)
        write_checkpoint(tmp_path / "sealed", random.Random(1), size=5_000)
        here = LocalHost("here", LocalHostConfig(root=str(tmp_path)))
        copy_tree(
            Endpoint(here, str(tmp_path / "sealed")), bucket_endpoint("gs://runs/ours/runs/r/checkpoints/step-20-a001")
        )
        worker = move.hosts.lookup("pod-0")
        assert isinstance(worker, Worker)
        worker.unreachable = True

        shutil.rmtree(move.target_group.checkpoint_store.endpoint("step-20-a001").directory)
        assert complete(move, "step-20-a001", StreamedCopy()) > 0
        assert_same_tree(Path(move.target_paths.checkpoint("step-20-a001")), tmp_path / "sealed")

        with (
            pytest.raises(ConnectionLostError),
            preemption.unless_preempted(move.fleet, move.source_group.target, move.note, "its log stays there"),
        ):
            move.source.call(standby_state.clock)()
        server.preempt("pod")
        with preemption.unless_preempted(move.fleet, move.source_group.target, move.note, "its log stays there"):
            move.source.call(standby_state.clock)()
        notes = [
            event.message for event in read_events(move.directory.journal_file) if "its log stays" in event.message
        ]
        assert len(notes) == 1
        assert "p/z/pod is PREEMPTED" in notes[0]
        move.hosts.close()


def test_source_preempted_before_seal_rolls_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The migration ends without a wait; its hint is --source-lost."""
    monkeypatch.setenv("MIDSTREAM_STATE", "")  # restored after the test
    with TpuServer() as server:
        monkeypatch.setenv(tpu_client.ENDPOINT, server.endpoint)
        monkeypatch.setattr(preemption, "QUERY_INTERVAL", 0.1)
        there, _, _ = begun(server, tmp_path, COLD)
        plan = changed(
            there.plan, source="pod-0", source_target="pod", source_hosts=("pod-0",), target="gpu", target_host="gpu",
            target_hosts=("gpu",),
        )  # fmt: skip
        move = Migration(plan, there.directory, there.journal, there.fleet, there.hosts, there.watch)
        worker = move.hosts.lookup("pod-0")
        assert isinstance(worker, Worker)

        class Struck:
            name = phase_names.PREPARE

            def run(self, move: Migration) -> None:
                worker.unreachable = True
                server.preempt("pod")
                move.source.call(standby_state.clock)()

        monkeypatch.setattr(executor, "phases", lambda: (Struck(),))
        assert executor.execute(move) == Exit.FAILED
        view = move.directory.view()
        assert (view.state, view.open) == (migration_state.ROLLED_BACK, False)
        assert "pod was preempted: p/z/pod is PREEMPTED" in view.error
        assert "--source-lost" in view.error
        messages = [event.message for event in read_events(move.directory.journal_file)]
        assert any("there is no source to return to" in line for line in messages)
        move.hosts.close()


def test_tpu_preemption_campaign_sample() -> None:
    CAMPAIGN.sample()


if __name__ == "__main__":
    CAMPAIGN.main(RESULTS, runs=500)
