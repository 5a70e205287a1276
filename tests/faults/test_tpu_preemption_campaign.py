"""A slice that is taken back, or only falls silent, at a random moment of a move that goes there.

    python tests/faults/test_tpu_preemption_campaign.py [--runs 500] [--seed 1] [--results FILE]

The move is carried out by the executor, with its journal, its rollback, two run directories and the lab's Cloud TPU
service; in the place of the engine's work each phase leaves what a real one would have left when it was struck. What is
drawn: the phase, whether it was half done, what the service says (preempted, terminated, gone, only its queued resource
knows, or ready), whether the API answers, and whether the worker comes back.

Where the service says that the slice is gone, the run is back on its source at once, which alone may commit; once it
was certified on the slice a person is asked. Where nobody says so, silence proves nothing: the move goes on where the
worker comes back; where it does not, the source goes on only if no engine was ever started there.

Results are appended one line a run, so that a campaign that was interrupted goes on where it was.
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

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

import grpc
import pytest
from google.cloud import tpu_v2

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script

from faults.test_tpu_campaign import hurry
from midstream.errors import Exit, LostContact, MidstreamError
from midstream.fleet.fleet import LocalHost
from midstream.fleet.fleet_file import load_fleet
from midstream.hosts.host_pool import Hosts
from midstream.hosts.local_host import LocalMachine
from midstream.hosts.providers.google import client
from midstream.migrate import model
from midstream.migrate.execution import executor, migration_directory
from midstream.migrate.execution.journal import Journal, read_events
from midstream.migrate.execution.migration import Migration
from midstream.migrate.failover import preemption
from midstream.migrate.phases import rollback
from midstream.migrate.phases.streamed_copy import Streamed, complete
from midstream.transfer import Endpoint, bucket_endpoint, copy_tree
from midstream.watch.watcher import Watch
from midstream_engine import records
from simulators.bucket import bucket_server
from simulators.tpu_api import Fault, TpuServer
from simulators.tpu_nodes import QueuedState, State
from support.campaigns import Campaign, Case
from support.run_directory import RunDirectory
from support.trees import assert_same_tree, write_checkpoint
from unit.sample_plan import PLAN

RESULTS = Path(__file__).parents[2] / "docs/campaigns/tpu-preemptions.jsonl"
PARENT = "projects/p/locations/z"
PHASES = (model.PREPARE, model.CUTOVER, model.RELAUNCH, model.CERTIFY, model.FINISH)
SAYS = ("preempted", "terminated", "gone", "queue", "queue", "ready", "ready")
STEP = 20


def draw(random_: random.Random) -> Case:
    """What happens in a run, as JSON."""
    return {
        "phase": random_.choice(PHASES),
        "half": random_.random() < 0.5,  # the phase had done its work, and had not said so yet
        "says": random_.choice(SAYS),
        "deaf": random_.choice((0, 0, 0, 1, 3)),  # calls of the API that fail for a while
        "back_after": random_.choice((None, None, 1, 3)),  # tries to reach the worker
        "standby": random_.random() < 0.5,
    }


class Worker(LocalMachine):
    """The slice's, which may stop answering."""

    silent = False
    tries = 0
    back_after: int | None = None

    def _reached(self) -> None:
        if self.silent:
            raise LostContact(f"{self.name}: the connection is gone")

    def connect(self) -> None:
        if self.silent and self.back_after is not None:
            self.tries += 1
            self.silent = self.tries < self.back_after
        self._reached()
        super().connect()

    def call(self, function: str, /, *, timeout: float | None = 60.0, **arguments: Any) -> Any:
        self._reached()
        return super().call(function, timeout=timeout, **arguments)


class Step:
    """A phase that leaves on the disks what a real one does."""

    def __init__(self, name: str, case: dict[str, Any], strike: Callable[[], None]):
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
        move.target.call("runs.standby_state.clock")

    def _prepare(self, move: Migration) -> None:
        move.target.call("runs.standby_state.clock")

    def _cutover(self, move: Migration) -> None:
        plan, side = move.plan, move.source_group
        side.acquire(plan.migration, plan.epoch, plan.target, 600.0)
        if move.journal.known("sealed") is None:
            move.journal.fact(holder_before="gpu")
            side.seal(plan.migration, plan.epoch, plan.target, STEP)
            fence = side.describe()["fence"]
            move.journal.fact(sealed={"step": STEP, "fence": fence, "attempt": 1, "checkpoint": "step-20-a001"})
        move.target.call("runs.standby_state.clock")

    def _relaunch(self, move: Migration) -> None:
        move.journal.fact(relaunching=True)
        move.target_group.put_fence(move.journal.known("sealed")["fence"], move.plan.migration)
        move.journal.fact(target_attempt=2)

    def _certify(self, move: Migration) -> None:
        move.target.call("runs.standby_state.clock")

    _finish = _certify


def begun(server: TpuServer, room: Path, mode: str) -> tuple[Migration, RunDirectory, Worker]:
    """A move of run ``r`` from host ``gpu`` to the slice ``pod``, which is ready."""
    server.nodes.clear()
    server.queued.clear()
    server.faults.clear()
    server.create(PARENT, "pod", tpu_v2.Node(accelerator_type="v3-8"))
    server._ready(f"{PARENT}/nodes/pod").queued_resource = f"{PARENT}/queuedResources/pod"
    server.operations.clear()  # it is made, and stays as it is
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
    plan = replace(PLAN, migration="m", source="gpu", target="pod", target_host="pod-0", target_hosts=("pod-0",))
    plan = replace(plan, mode=mode)
    hosts = Hosts(fleet)
    worker = hosts._hosts["pod-0"] = Worker("pod-0", fleet.hosts["pod-0"])  # type: ignore[arg-type]
    place = migration_directory.create(plan, fleet.text)
    return Migration(plan, place, Journal(place.journal_file), fleet, hosts, Watch(fleet, hosts)), run, worker


def one_run(case: Case, random_: random.Random, server: TpuServer) -> str:
    """How it came out. AssertionError where the run belongs to nobody, to two, or to silence."""
    with tempfile.TemporaryDirectory(prefix="preemption-") as room:
        return moved(case, server, Path(room))


def moved(case: Case, server: TpuServer, room: Path) -> str:
    move, run, worker = begun(server, room, model.WARM if case["standby"] else model.COLD)

    def strike() -> None:
        worker.silent, worker.back_after = True, case["back_after"]
        node = server.nodes[f"{PARENT}/nodes/pod"]
        if case["says"] == "preempted":
            node.state = State.PREEMPTED
        elif case["says"] == "terminated":
            node.state = State.TERMINATED
        elif case["says"] == "gone":
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
    taken = case["says"] != "ready"
    sealed = move.journal.known("sealed") is not None
    started = move.journal.known("relaunching") is not None
    told = [event.message for event in view.events if "says its provider" in event.message]
    if not worker.silent:  # it came back before anybody had to decide, or was said to be gone and then rolled back
        assert code in (Exit.DONE, Exit.FAILED, Exit.INTERRUPTED)
    if view.state == model.COMPLETED:
        assert (fence.epoch, fence.owner) == (2, "pod")
        assert case["back_after"] is not None, "a move that goes on needs its target"
        return "went on"
    if view.state == model.INTERRUPTED and case["phase"] == model.FINISH:
        assert "--rollback m" in view.error, "what was certified is not given up by itself"
        return "asked a person"
    if view.state == model.INTERRUPTED:
        assert started or not sealed, "a run that stands still goes back to its source"
        assert not told, "and nobody says that it is gone"
        assert not taken or case["deaf"], view.error
        assert "midstream --continue m goes on when the host answers" in view.error
        return "waits for evidence"
    if view.state == model.ROLLBACK_INCOMPLETE:
        assert started, "an engine may run there"
        assert not told, "and nobody says that it does not"
        assert not taken or case["deaf"], view.error
        return "waits for evidence"
    assert view.state == model.ROLLED_BACK, view.state
    holder = ("gpu", 3) if sealed else ("gpu", 1)
    assert (fence.owner, fence.epoch) == holder
    assert fence.accepts(fence.epoch, STEP + 1), "the source may commit"
    assert records.MigrationLock.read_or_none(run.paths.migration_lock) is None, "nobody has the run in hand any more"
    if started and worker.silent:
        assert taken, "silence proves nothing"
        assert told
    return "back at once" if told else "back after silence"


@contextmanager
def opened() -> Iterator[TpuServer]:
    with TpuServer() as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv(client.ENDPOINT, server.endpoint)
        patch.setenv("MIDSTREAM_STATE", "")
        hurry(patch.setattr)
        patch.setattr(executor, "RECONNECT", 0.3)
        patch.setattr(executor, "PAUSE", 0.05)
        patch.setattr(preemption, "EVERY", 0.1)
        patch.setattr(rollback, "SILENCE", 0.1)
        yield server


CAMPAIGN = Campaign(draw, one_run, opened)


def test_nobody_waits_for_a_slice_that_its_provider_has_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MIDSTREAM_STATE", "")  # and as it was, afterwards
    with TpuServer() as server:
        monkeypatch.setenv(client.ENDPOINT, server.endpoint)
        move, _, _ = begun(server, tmp_path, model.COLD)  # nobody watches: the worker is silent
        with pytest.raises(MidstreamError, match="x: not within 0 s on pod-0"):
            move.wait_for("x", "pod-0", lambda run: True, 0.1)
        server.preempt("pod")
        with pytest.raises(preemption.Preempted, match=r"pod was taken back: p/z/pod is PREEMPTED.*says its provider"):
            move.wait_for("x", "pod-0", lambda run: True, 600.0)
        with pytest.raises(MidstreamError, match="x: not within 0 s on gpu"):
            move.wait_for("x", "gpu", lambda run: True, 0.1)
        move.hosts.close()


def test_a_source_that_is_taken_back_after_the_seal_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checkpoints lie in a bucket; what it alone has is told as lost, once its provider says that it is gone."""
    monkeypatch.setenv("MIDSTREAM_STATE", "")  # and as it was, afterwards
    with TpuServer() as server, bucket_server("runs") as bucket:
        for name, value in {**bucket.environment, client.ENDPOINT: server.endpoint}.items():
            monkeypatch.setenv(name, value)
        there, _, _ = begun(server, tmp_path, model.COLD)
        plan = replace(
            there.plan, source="pod-0", source_target="pod", target="gpu", target_host="gpu", target_hosts=("gpu",),
            source_store="gs://runs/ours",
        )  # fmt: skip
        move = Migration(plan, there.directory, there.journal, there.fleet, there.hosts, there.watch)
        write_checkpoint(tmp_path / "sealed", random.Random(1), size=5_000)
        here = LocalMachine("here", LocalHost(root=str(tmp_path)))
        copy_tree(
            Endpoint(here, str(tmp_path / "sealed")), bucket_endpoint("gs://runs/ours/runs/r/checkpoints/step-20-a001")
        )
        worker = move.hosts.peek("pod-0")
        assert isinstance(worker, Worker)
        worker.silent = True

        shutil.rmtree(move.target_group.checkpoint_store.endpoint("step-20-a001").directory)
        assert complete(move, "step-20-a001", Streamed()) > 0
        assert_same_tree(Path(move.target_paths.checkpoint("step-20-a001")), tmp_path / "sealed")

        with pytest.raises(LostContact), preemption.unless_preempted(move, move.source_group, "its log stays there"):
            move.source.call("runs.standby_state.clock")
        server.preempt("pod")
        with preemption.unless_preempted(move, move.source_group, "its log stays there"):
            move.source.call("runs.standby_state.clock")
        told = [event.message for event in read_events(move.directory.journal_file) if "its log stays" in event.message]
        assert len(told) == 1
        assert "p/z/pod is PREEMPTED" in told[0]
        move.hosts.close()


def test_a_source_that_is_taken_back_before_the_seal_ends_the_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is waited for, and nothing stays open: what it left is another move's."""
    monkeypatch.setenv("MIDSTREAM_STATE", "")  # and as it was, afterwards
    with TpuServer() as server:
        monkeypatch.setenv(client.ENDPOINT, server.endpoint)
        monkeypatch.setattr(preemption, "EVERY", 0.1)
        there, _, _ = begun(server, tmp_path, model.COLD)
        plan = replace(
            there.plan, source="pod-0", source_target="pod", source_hosts=("pod-0",), target="gpu", target_host="gpu",
            target_hosts=("gpu",),
        )  # fmt: skip
        move = Migration(plan, there.directory, there.journal, there.fleet, there.hosts, there.watch)
        worker = move.hosts.peek("pod-0")
        assert isinstance(worker, Worker)

        class Struck:
            name = model.PREPARE

            def run(self, move: Migration) -> None:
                worker.silent = True
                server.preempt("pod")
                move.source.call("runs.standby_state.clock")

        monkeypatch.setattr(executor, "phases", lambda: (Struck(),))
        assert executor.execute(move) == Exit.FAILED
        view = move.directory.view()
        assert (view.state, view.open) == (model.ROLLED_BACK, False)
        assert "pod was taken back: p/z/pod is PREEMPTED" in view.error
        assert "--source-lost" in view.error
        told = [event.message for event in read_events(move.directory.journal_file)]
        assert any("there is nothing to go back to" in line for line in told)
        move.hosts.close()


def test_a_sample_of_the_campaign() -> None:
    CAMPAIGN.sample()


if __name__ == "__main__":
    CAMPAIGN.main(RESULTS, runs=500)
