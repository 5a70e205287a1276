"""A whole move to a slice that is taken back in the middle of it, by its provider's word and with its machines: the run
goes on where it came from."""

from __future__ import annotations

import json
import random
import time

import pytest

from midstream.migrate import model
from midstream.migrate.execution.journal import read_events
from midstream.migrate.execution.migration_directory import MigrationDirectory, migration_ids
from simulators.bucket import BucketServer
from simulators.sshd import Lab
from simulators.tpu_api import TpuServer, tpu_server
from simulators.tpu_nodes import State
from support.command_line import start_midstream
from support.guide import begin
from support.migration_faults import SLOW

__all__ = ["tpu_server"]
pytestmark = pytest.mark.system
PATIENCE = 240.0  # seconds for what engines do
SECONDS = 0.3  # of a step on the slice, so that it is certified for a while
COMPARED = 30  # steps that the source has done past the checkpoint: what is compared before it is certified
LINES = {model.PREPARE: 6, model.RELAUNCH: 2, model.CERTIFY: 1}  # of the journal in a phase, out of which one is drawn
SAYS = ("preempted", "terminated", "gone", "queue")


def reached(phase: str, lines: int) -> MigrationDirectory:
    """Once the newest migration has begun the phase and written so many lines in it."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        for migration in migration_ids()[:1]:
            directory = MigrationDirectory(migration)
            events = [event for event in read_events(directory.journal_file) if event.state != model.PROGRESS]
            begun = [
                index for index, event in enumerate(events) if (event.phase, event.state) == (phase, model.STARTED)
            ]
            if begun and len(events) - begun[0] >= lines:
                return directory
        time.sleep(0.01)
    pytest.fail(f"{phase}: not within {PATIENCE:.0f} s")


@pytest.mark.slow  # three engines start, on two cores
@pytest.mark.timeout(900)
@pytest.mark.parametrize("phase", list(LINES))
def test_a_run_goes_on_at_its_source_when_its_target_is_taken_back(
    lab: Lab, tpu_server: TpuServer, bucket: BucketServer, runs, phase: str
) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    lines, says = rng.randint(1, LINES[phase]), rng.choice(SAYS)

    slow = lab.directory / "slow"
    slow.mkdir()
    (slow / "sitecustomize.py").write_text(SLOW.replace("SECONDS", str(SECONDS)).replace("SHADOWS", str(SECONDS)))
    guide = begin(lab, tpu_server, bucket, worker=f", env: {{PYTHONPATH: {slow}}}", queued="true")
    gpu, pod, file = guide.gpu, guide.pod, guide.file
    source = runs(gpu.root, "r")
    source.wait_step(20 + COMPARED, PATIENCE)

    move = start_midstream(
        "--fleet", file, "--migrate", "r", "--to", "pod", "--checkpoint", "20", "--yes", "--json",
        "--certify-steps", str(COMPARED), "--healthy-steps", "3",
    )  # fmt: skip
    try:
        directory = reached(phase, lines)
        if says == "gone":
            tpu_server.nodes.clear()
            tpu_server.queued.clear()
        else:
            tpu_server.preempt("n", says_so=says != "queue")
            if says == "terminated":
                next(iter(tpu_server.nodes.values())).state = State.TERMINATED
        pod.go_away()
        before = source.status()
        output, talk = move.communicate(timeout=PATIENCE)
    finally:
        move.kill()
        pod.kill_engines()
    case = f"seed {seed}: {phase}, line {lines}, {says}"
    assert move.returncode == 1, (case, talk[-3000:])
    (result,) = (event for event in map(json.loads, output.splitlines()) if event["event"] == "result")
    assert result["outcome"] == model.ROLLED_BACK, case
    told = [event.message for event in read_events(directory.journal_file) if "says its provider" in event.message]
    assert told, (case, "by its provider's word, and not by silence")
    assert before is not None
    fence = source.fence
    assert (fence.holder, fence.epoch) == ("gpu", 1 if phase == model.PREPARE else 3), case
    goes_on = len(source.spliced()) + 5
    source.wait(lambda run: run.alive and len(run.spliced()) > goes_on, "the run goes on", PATIENCE)
    assert sorted(source.spliced()) == list(range(max(source.spliced()) + 1)), case
    if phase == model.PREPARE:
        assert source.status().pid == before.pid, (case, "the run was never touched")
