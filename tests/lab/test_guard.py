"""A guarded run is moved when its machine is certainly gone, and left alone when nobody knows."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from lab.command_line import SLOWER, TINY, midstream, refused, start_midstream
from lab.sshd import Lab


def told(path: Path) -> list[dict]:
    """What the on_event command has been given so far."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.slow
def test_a_run_whose_engine_is_killed_goes_on_elsewhere_and_somebody_is_told(lab: Lab, runs, tmp_path: Path):
    one, two = lab.local("one", devices=2), lab.local("two", devices=1)
    fleet = lab.fleet_file(one=one, two=two)
    events = tmp_path / "events"
    fleet.write_text(fleet.read_text() + f'\non_event: "cat >> {events}"\n')
    training = (*SLOWER, "--trainer.num_train_steps", "5000", "--trainer.checkpointer.keep", "[{every: 5}]")
    launched = midstream("--fleet", fleet, "--launch", TINY, "--on", "one", "--run-id", "r", "--", *training)
    assert launched.code == 0, launched.stderr
    source, target = runs(one.root, "r"), runs(two.root, "r")
    source.wait(lambda run: bool(run.checkpoints()), "a checkpoint")
    guard = start_midstream("--fleet", fleet, "--guard", "r", "--to", "one,two", "--tries", "2", "--json")
    try:
        time.sleep(3.0)  # the guard looks on while all is well, and does nothing
        assert source.alive
        assert told(events) == []
        source.kill()
        target.wait(lambda run: (status := run.status()) is not None and status.step > 5, "the run on two", 180.0)
        deadline = time.monotonic() + 120.0
        while not any(event["kind"] == "finished" for event in told(events)):
            assert time.monotonic() < deadline, told(events)
            time.sleep(0.2)
        assert guard.poll() is None, "it guards the run on its new machine"
        stopped = midstream("--fleet", fleet, "--stop", "r")
        assert stopped.code == 0, stopped.stderr
        output, talk = guard.communicate(timeout=60.0)
    finally:
        guard.kill()
    assert guard.returncode == 0, talk
    kinds = [json.loads(line)["kind"] for line in output.splitlines()]
    assert kinds == ["lost", "moving", "finished", "finished"]
    assert [(event["event"], event["kind"]) for event in told(events)] == [
        ("guard", "lost"), ("migration", "finished"), ("guard", "finished"),
    ]  # fmt: skip
    assert target.fence.holder == "two"
    assert target.fence.epoch == 2


def test_what_cannot_be_guarded_is_refused(lab: Lab):
    fleet = lab.fleet_file(one=lab.local("one"))
    refused(midstream("--fleet", fleet, "--guard", "r"), 2, "--to")
    refused(midstream("--fleet", fleet, "--guard", "r", "--to", "nowhere"), 2, "nowhere")
    refused(midstream("--fleet", fleet, "--guard", "r", "--to", "one"), 2, "no run 'r'")
    refused(midstream("--fleet", fleet, "--guard", "r", "--to", "one", "--tries", "0"), 2, "--tries")
