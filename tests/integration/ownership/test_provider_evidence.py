"""A provider's word that a machine was preempted lets a launch go on; any other answer of it does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from google.cloud import tpu_v2

from midstream.errors import MidstreamError
from midstream.fleet.fleet_file import load_fleet
from midstream.hosts.host_pool import HostPool
from midstream.launch import launch_run
from midstream.launch.launch_ownership import sign_import
from midstream.providers.gce.provider import ComputeProvider
from simulators.google.compute_api import ComputeServer, compute_server
from simulators.google.tpu_api import TpuServer, fast_polling, tpu_server
from support.local_fleet import Fleet, stopped_run

__all__ = ["compute_server", "fast_polling", "tpu_server"]
pytestmark = [pytest.mark.usefixtures("fast_polling"), pytest.mark.drawn]
TARGETS = {
    "tpu": "type: tpu, project: p, zone: z",
    "gce": "type: gce, project: proj, zone: us-x1-a, machine_type: tpu7x-standard-4t",
}


class StoppedError(MidstreamError):
    """All checks of the launch have passed."""


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Fleet:
    """A fleet with a run that stopped on "here"; no engine is started."""

    def prepare(*_: Any) -> None:
        raise StoppedError("it would start")

    monkeypatch.setattr(launch_run, "prepare_target", prepare)
    monkeypatch.setenv("MIDSTREAM_STATE", str(tmp_path / "state"))
    fleet = Fleet(tmp_path, capsys, "here")
    stopped_run(fleet.roots["here"])
    hosts = HostPool(load_fleet(fleet.file))
    try:
        sign_import(hosts.get("here"), "solo")
    finally:
        hosts.close()
    return fleet


def launched(fleet: Fleet) -> str:
    """Return the last line of a launch that continues the run."""
    config = fleet.roots["here"] / "runs/solo/run.yaml"
    code, _, err = fleet("--launch", str(config), "--on", "here", "--run-id", "solo")
    line = err.strip().splitlines()[-1]
    assert code == (1 if "it would start" in line else 3), (code, err)
    return line


def with_target(fleet: Fleet, kind: str) -> None:
    fleet.file.write_text(fleet.file.read_text() + f"targets: {{pod: {{{TARGETS[kind]}}}}}\n")


def test_tpu_that_its_provider_has_taken_back(fleet: Fleet, tpu_server: TpuServer) -> None:
    """On the old code the word of the provider did not count where the slice's workers are not known any more."""
    with_target(fleet, "tpu")
    assert "it would start" in launched(fleet), "no such slice exists"
    tpu_server.create("projects/p/locations/z", "pod", tpu_v2.Node(accelerator_type="v3-8"))
    assert "1 host of the fleet that may train it further does not answer: pod" in launched(fleet), "it is created"
    tpu_server.make_ready("projects/p/locations/z/nodes/pod")
    assert "does not answer: pod" in launched(fleet), "it is ready, and its workers are not known"
    tpu_server.preempt("pod")
    assert "it would start" in launched(fleet)


def test_unreachable_provider_is_no_evidence(
    fleet: Fleet, tpu_server: TpuServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_target(fleet, "tpu")
    monkeypatch.setenv("MIDSTREAM_TPU_ENDPOINT", "127.0.0.1:1")
    assert "does not answer: pod" in launched(fleet)


def test_machine_that_its_provider_has_taken_back(fleet: Fleet, compute_server: ComputeServer, tmp_path: Path) -> None:
    with_target(fleet, "gce")
    assert "it would start" in launched(fleet), "no such machine exists"
    target: Any = load_fleet(fleet.file).targets["pod"]
    ComputeProvider().create("pod", target, lambda _: None)
    line = launched(fleet)
    assert "does not answer: pod" in line, line
    compute_server.preempt("pod")
    assert "it would start" in launched(fleet)
