"""A guard migrates a run whose machine's cloud announces its end, while that machine still answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from midstream_core import aws_metadata, azure_metadata, google_metadata
from simulators.cloud_metadata import AwsMetadata, AzureMetadata
from simulators.google.metadata import MetadataServer
from simulators.sshd import Lab, environment
from support.command_line import SLOWER, TINY, Run, midstream, start_midstream
from support.launched_processes import kill_launched

pytestmark = [pytest.mark.slow, pytest.mark.system]
# No checkpoint is due before the notice, so the first one is that which the notice causes.
TRAINING = (*SLOWER, "--trainer.num_train_steps", "20000", "--trainer.checkpointer.keep", "[{every: 20000}]")
# What the guard reports after "the provider ", and what the log of the engine has.
NOTICES = {
    "aws": ("ends this machine: spot terminate at 2026-11-25T08:22:00Z", "spot terminate at 2026-11-25T08:22:00Z"),
    "azure": (
        "ends this machine: preempt not before Wed, 25 Nov 2026 18:29:47 GMT",
        "preempt not before Wed, 25 Nov 2026 18:29:47 GMT",
    ),
    "google": ("preempts this machine now", "preempted: TRUE"),
}
Announce = Callable[[], None]


@contextmanager
def aws() -> Iterator[tuple[dict[str, str], Announce]]:
    with AwsMetadata() as server:

        def announce() -> None:
            server.action = {"action": "terminate", "time": "2026-11-25T08:22:00Z"}

        yield {aws_metadata.VARIABLE: server.url}, announce


@contextmanager
def azure() -> Iterator[tuple[dict[str, str], Announce]]:
    with AzureMetadata("spot_1") as server:
        server.event("Preempt", "spot_2")  # another machine of the scale set
        yield {azure_metadata.VARIABLE: server.url}, lambda: server.event("Preempt", "spot_1")


@contextmanager
def google() -> Iterator[tuple[dict[str, str], Announce]]:
    with MetadataServer() as server:
        yield {google_metadata.VARIABLE: server.address}, lambda: server.values.update(preempted="TRUE")


@pytest.mark.parametrize("cloud", [aws, azure, google])
def test_run_leaves_machine_whose_end_is_announced(
    lab: Lab, runs: Callable[..., Run], cloud: Callable, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MIDSTREAM_STATE", str(tmp_path / "state"))
    with cloud() as (variables, announce):
        spot, calm = lab.host("spot", 2, sshd=environment(**variables)), lab.host("calm", 1)
        fleet = lab.fleet_file(spot=spot.config, calm=calm.config)
        launched = midstream("--fleet", fleet, "--launch", TINY, "--on", "spot", "--run-id", "r", "--", *TRAINING)
        assert launched.code == 0, launched.stderr
        source, target = runs(spot.root, "r"), runs(calm.root, "r")
        source.wait_step(5)
        guard = start_midstream("--fleet", fleet, "--guard", "r", "--to", "calm", "--tries", "1", "--json")
        try:
            assert guard.stderr is not None
            assert guard.stdout is not None
            assert any("guarding r on spot" in line for line in guard.stderr)
            source.wait_step(40)
            assert source.checkpoints() == []
            announce()
            source.wait(lambda run: bool(run.checkpoints()), "the save that the notice causes")
            assert source.running, "it trains on after the save"
            events: list[dict] = []
            for line in guard.stdout:
                events.append(json.loads(line))
                if events[-1]["kind"] in ("finished", "needs_you"):
                    break
            # The machine ends, and the run does not need it any more.
            spot.stop()
            kill_launched(Path(source.paths.dir).parent)
            status = target.status()
            assert status is not None
            target.wait_step(status.step + 20)
            stopped = midstream("--fleet", fleet, "--stop", "r")
            assert stopped.code == 0, stopped.stderr
            output, errors = guard.communicate(timeout=120)
        finally:
            guard.kill()
    events += [json.loads(line) for line in output.splitlines()]
    assert guard.returncode == 0, (errors, events)
    assert [event["kind"] for event in events] == ["lost", "migrating", "finished", "finished"], errors
    reported, logged = NOTICES[cloud.__name__]
    assert events[0]["message"] == f"spot: the provider {reported}", events
    moved = Path(tmp_path, "state", "migrations", events[1]["migration"])
    certificate = json.loads((moved / "certificate.json").read_text())
    verdicts = {claim["name"]: claim["verdict"] for claim in certificate["claims"]}
    assert (verdicts["state"], verdicts["data"], verdicts["reference losses"]) == ("verified",) * 3, certificate
    assert (target.fence.owner, target.fence.epoch) == ("calm", 2)
    rows = target.spliced()
    assert sorted(rows) == list(range(len(rows))), "no step is missing"
    log = Path(source.paths.attempt(1).log()).read_text()
    line = next(line for line in log.splitlines() if "this machine is about to be preempted" in line)
    assert f"({logged})" in line, line
