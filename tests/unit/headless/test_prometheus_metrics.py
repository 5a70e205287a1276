"""Metrics of a fleet for Prometheus, and the server of --serve-metrics."""

from __future__ import annotations

import argparse
import threading
import urllib.request

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from midstream.errors import UsageError
from midstream.fleet.fleet_file import parse_fleet
from midstream.headless.serve_metrics import serve_metrics
from midstream.listing.fleet_facts import FleetFacts
from midstream.listing.prometheus_metrics import FleetMetrics
from midstream.output import Output
from midstream.watch.machine import Accelerator, Machine
from midstream.watch.snapshot import HostView, RunView, Snapshot
from midstream_core.listed_checkpoint import ListedCheckpoint

MACHINE = Machine(
    "gpu1.lan", "Linux", "3.11", 64, 0.25, 1 << 40, 1 << 39, 1 << 42, 1 << 41, -0.5,
    (Accelerator(0, "NVIDIA H100", 80 << 30, 40 << 30, 0.9, temperature=61.0), Accelerator(1, "NVIDIA H100")),
)  # fmt: skip
RUN = RunView(
    "webtext", "gpu1", None, None, 1, None, True,
    (ListedCheckpoint("step-50", 50, 1, True, True), ListedCheckpoint("step-60", 60, 1, False, True)),
    curve=({"train/loss": 3.5, "throughput/tokens_per_second": 1000.0}, {"train/loss": 3.25}),
)  # fmt: skip
HOSTILE = RunView('a"} 1\nmidstream_host_up{host="evil\x1b[2J', "gpu1", None, None, 0, None, False)


def samples(snapshot: Snapshot) -> dict[tuple[str, tuple[str, ...]], float]:
    """Return what Prometheus reads, by metric and label values, in the order of the labels' names."""
    registry = CollectorRegistry()
    facts = FleetFacts()
    facts.set_costs({"webtext": 12.5})
    registry.register(FleetMetrics(lambda: snapshot, list, facts))
    text = generate_latest(registry).decode()
    return {
        (sample.name, tuple(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_hosts_accelerators_and_runs_are_metrics() -> None:
    hosts = (HostView("gpu1", "ssh", "live", 1000.0, machine=MACHINE), HostView("gpu2", "ssh", "down"))
    found = samples(Snapshot(1, 0.0, hosts, (RUN,)))
    assert found["midstream_host_up", ("gpu1",)] == 1
    assert found["midstream_host_up", ("gpu2",)] == 0
    assert ("midstream_host_cpu_used_ratio", ("gpu2",)) not in found, "what is not known has no value"
    assert found["midstream_host_accelerators", ("gpu1",)] == 2
    assert found["midstream_accelerator_utilization_ratio", ("0", "gpu1", "NVIDIA H100")] == 0.9
    assert ("midstream_accelerator_utilization_ratio", ("1", "gpu1", "NVIDIA H100")) not in found
    assert found["midstream_run_running", ("gpu1", "webtext")] == 1
    assert found["midstream_run_loss", ("gpu1", "webtext")] == 3.25
    assert found["midstream_run_tokens_per_second", ("gpu1", "webtext")] == 1000
    assert found["midstream_run_checkpoint_step", ("gpu1", "webtext")] == 50, "an incomplete one does not count"
    assert found["midstream_run_cost", ("gpu1", "webtext")] == 12.5
    assert found["midstream_runs", ()] == 1


def test_host_that_does_not_answer_has_no_old_values() -> None:
    hosts = (HostView("gpu1", "ssh", "stale", 1000.0, machine=MACHINE),)
    found = samples(Snapshot(1, 0.0, hosts, (RUN,)))
    assert {name for name, _ in found if name.startswith(("midstream_host", "midstream_accelerator"))} == {
        "midstream_host_up",
        "midstream_host_last_seen_timestamp_seconds",
    }
    assert found["midstream_host_up", ("gpu1",)] == 0
    assert not [name for name, _ in found if name in ("midstream_run_running", "midstream_run_state")]
    assert ("midstream_run_tokens_per_second", ("gpu1", "webtext")) not in found
    assert found["midstream_run_loss", ("gpu1", "webtext")] == 3.25, "of the row that it has"
    assert found["midstream_runs", ()] == 1


def test_names_from_hosts_cannot_forge_metrics() -> None:
    found = samples(Snapshot(1, 0.0, (HostView("gpu1", "ssh", "live"),), (HOSTILE,)))
    assert [labels for name, labels in found if name == "midstream_host_up"] == [("gpu1",)]
    ((_, name),) = [labels for metric, labels in found if metric == "midstream_run_running"]
    assert "\x1b" not in name


def options(**words: str) -> argparse.Namespace:
    return argparse.Namespace(**{"serve_metrics": "0", "bind": None, **words})


def test_metrics_are_served_on_loopback(capsys: pytest.CaptureFixture[str]) -> None:
    fleet, stop = parse_fleet("hosts: {here: {type: local}}"), threading.Event()
    printed: list[str] = []
    ready = threading.Event()

    class Lines(Output):
        def value(self, value: dict[str, object], text: object = "") -> None:  # type: ignore[override]
            printed.append(str(value.get("url")))
            ready.set()

    thread = threading.Thread(target=serve_metrics, args=(fleet, options(), Lines(True), stop))
    thread.start()
    try:
        assert ready.wait(60)
        assert printed[0].startswith("http://127.0.0.1:")
        with urllib.request.urlopen(printed[0], timeout=30) as answer:
            text = answer.read().decode()
        assert 'midstream_host_up{host="here"}' in text
        assert "midstream_runs " in text
        port = printed[0].rpartition(":")[2].partition("/")[0]
        with pytest.raises(UsageError, match=f"127.0.0.1 port {port} cannot be served"):
            serve_metrics(fleet, options(serve_metrics=port), Output(False))
    finally:
        stop.set()
        thread.join(60)
    assert not thread.is_alive()


@pytest.mark.parametrize("port", ["http", "70000", "-1", ""])
def test_wrong_port_is_refused(port: str) -> None:
    with pytest.raises(UsageError, match="a port from 1 to 65535"):
        serve_metrics(parse_fleet("hosts: {here: {type: local}}"), options(serve_metrics=port), Output(False))
