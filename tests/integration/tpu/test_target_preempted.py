"""A slice is preempted during a migration to it: the run returns to its source.

Provider and machines agree on the preemption.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable

import pytest

from midstream.migrate.journal import migration_state, phase_names
from midstream.migrate.journal.journal import read_events
from midstream.migrate.journal.migration_directory import MigrationDirectory, migration_ids
from simulators.google.tpu_api import TpuServer, tpu_server
from simulators.google.tpu_nodes import State
from simulators.object_stores.bucket import BucketServer
from simulators.sshd import Lab
from support.command_line import Run, start_midstream
from support.guide import begin
from support.migrations.migration_faults import SLOW

__all__ = ["tpu_server"]
pytestmark = pytest.mark.system
PATIENCE = 240.0  # seconds for what engines do
SECONDS = 0.3  # of a step on the slice, so that certification takes a while
COMPARED = 30  # steps of the source past the checkpoint, which the certificate compares
LINES = {
    phase_names.PREPARE: 6,
    phase_names.RELAUNCH: 2,
    phase_names.CERTIFY: 1,
}  # of the journal in a phase, out of which one is drawn
REPORTS = ("preempted", "terminated", "deleted", "queue")


def reached(phase: str, lines: int) -> MigrationDirectory:
    """Wait until the newest migration has written ``lines`` lines in a phase."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        for migration in migration_ids()[:1]:
            directory = MigrationDirectory(migration)
            events = [event for event in read_events(directory.journal_file) if event.state != phase_names.PROGRESS]
            begun = [
                index
                for index, event in enumerate(events)
                if (event.phase, event.state) == (phase, phase_names.STARTED)
            ]
            if begun and len(events) - begun[0] >= lines:
                return directory
        time.sleep(0.01)
    pytest.fail(f"{phase}: not within {PATIENCE:.0f} s")


@pytest.mark.slow  # three engines start, on two cores
@pytest.mark.timeout(900)
@pytest.mark.parametrize("phase", list(LINES))
def test_preempted_target_returns_run_to_source(
    lab: Lab, tpu_server: TpuServer, bucket: BucketServer, runs: Callable[..., Run], phase: str
) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    lines, report = rng.randint(1, LINES[phase]), rng.choice(REPORTS)

    slow = lab.directory / "slow"
    slow.mkdir()
    (slow / "sitecustomize.py").write_text(SLOW.replace("SECONDS", str(SECONDS)).replace("REPLICAS", str(SECONDS)))
    guide = begin(lab, tpu_server, bucket, worker=f", env: {{PYTHONPATH: {slow}}}", queued="true")
    gpu, pod, file = guide.gpu, guide.pod, guide.file
    source = runs(gpu.root, "r")
    source.wait_step(20 + COMPARED, PATIENCE)

    process = start_midstream(
        "--fleet", file, "--migrate", "r", "--to", "pod", "--checkpoint", "20", "--yes", "--json",
        "--certify-steps", str(COMPARED), "--healthy-steps", "3",
    )  # fmt: skip
    try:
        directory = reached(phase, lines)
        if report == "deleted":
            tpu_server.nodes.clear()
            tpu_server.queued.clear()
        else:
            tpu_server.preempt("n", says_so=report != "queue")
            if report == "terminated":
                next(iter(tpu_server.nodes.values())).state = State.TERMINATED
        pod.go_away()
        before = source.status()
        output, errors = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        pod.kill_engines()
    case = f"seed {seed}: {phase}, line {lines}, {report}"
    assert process.returncode == 1, (case, errors[-3000:])
    (result,) = (event for event in map(json.loads, output.splitlines()) if event["event"] == "result")
    assert result["outcome"] == migration_state.ROLLED_BACK, case
    messages = [
        event.message for event in read_events(directory.journal_file) if "according to its provider" in event.message
    ]
    assert messages, (case, "the provider's status is the evidence")
    assert before is not None
    fence = source.fence
    assert (fence.owner, fence.epoch) == ("gpu", 1 if phase == phase_names.PREPARE else 3), case
    further = len(source.spliced()) + 5
    source.wait(lambda run: run.running and len(run.spliced()) > further, "further steps", PATIENCE)
    assert sorted(source.spliced()) == list(range(max(source.spliced()) + 1)), case
    if phase == phase_names.PREPARE:
        after = source.status()
        assert after is not None
        assert after.pid == before.pid, (case, "the run was not restarted")
