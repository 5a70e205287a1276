"""Arithmetic of a copy: items of streams, rates, ports, later history."""

from __future__ import annotations

import json
import random
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from midstream.errors import UsageError
from midstream.fleet.fleet import LocalHostConfig
from midstream.fleet.fleet_file import parse_fleet
from midstream.fleet.quantities import parse_ports, parse_rate
from midstream.hosts.local_host import LocalHost
from midstream.transfer.copy_history import _ComparedFile, _decide
from midstream.transfer.copy_settings import CopySettings, ports_of, settings_of_hosts
from midstream.transfer.progress import Meter
from midstream.transfer.send_queue import (
    BUCKET_QUEUED_BYTES,
    CHUNK,
    MIN_QUEUED_BYTES,
    MIN_RANGE,
    MIN_STREAM_BYTES,
    SendQueue,
    split,
    stream_count,
)
from midstream_host.copy_items import CopyObject

MIB = 1 << 20


def entries(sizes: list[int]) -> list[CopyObject]:
    return [{"path": str(index), "size": size, "sha256": ""} for index, size in enumerate(sizes)]


@pytest.mark.parametrize("seed", [5, 6])
def test_split_covers_every_byte_in_short_items(seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(50):
        sizes = [rng.choice([0, 5, MIB, 40 * MIB, 300 * MIB]) + rng.randrange(MIB) for _ in range(rng.randrange(1, 60))]
        streams = rng.randrange(1, 9)
        items = split(entries(sizes), streams)
        for index, size in enumerate(sizes):
            own = [(item["offset"], item["length"]) for item in items if item["path"] == str(index)]
            assert own == [(start, min(own[0][1], size - start)) for start in range(0, max(1, size), own[0][1] or 1)]
        if streams > 1:
            longest = max(item["length"] for item in items)
            assert longest <= max(2 * CHUNK, sum(sizes) / (4 * streams))


@pytest.mark.parametrize(
    ("sizes", "streams"),
    [
        ([5], 1),
        ([MIN_STREAM_BYTES], 1),
        ([MIN_STREAM_BYTES * 4], 2),
        ([MIN_STREAM_BYTES, MIN_STREAM_BYTES], 2),
        ([10] * 1000, 1),
    ],
)
def test_stream_count_follows_the_bytes_to_send(sizes: list[int], streams: int) -> None:
    assert stream_count(split(entries(sizes), 2), 2) == streams


@pytest.mark.parametrize("bucket", [False, True])
@pytest.mark.parametrize("seed", [7, 8])
def test_send_queue_shrinks_items_near_the_end(seed: int, bucket: bool) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(5):
        sizes = [rng.choice([0, 5, MIB, 16 * MIB, 90 * MIB]) + rng.randrange(MIB) for _ in range(rng.randrange(1, 20))]
        streams = rng.randrange(2, 9)
        source, target = SimpleNamespace(in_bucket=False), SimpleNamespace(in_bucket=bucket)
        route: Any = SimpleNamespace(source=source, target=target)
        queue = SendQueue(route, deque(split(entries(sizes), 1 if bucket else streams)), opening=streams)
        lots = []
        while queue.items:
            left, stock = queue.remaining, queue.queued_bytes
            lots.append(queue.take())
            assert stock <= (BUCKET_QUEUED_BYTES if bucket else max(MIN_QUEUED_BYTES, left / streams))
            if not bucket and not any(item["length"] == item["size"] < MIN_RANGE for item in lots[-1]):
                assert sum(item["length"] for item in lots[-1]) <= max(MIN_RANGE, left / (4 * streams))
        assert queue.remaining == 0
        for index, size in enumerate(sizes):
            own = [item for lot in lots for item in lot if item["path"] == str(index)]
            ends = [0, *(item["offset"] + item["length"] for item in own)]
            assert [item["offset"] for item in own] == ends[:-1]
            assert ends[-1] == size
            assert not bucket or len(own) == 1


@pytest.mark.parametrize(
    ("text", "rate"),
    [("100MB/s", 100e6), ("1Gb/s", 125e6), ("2 MiB/s", 2 * MIB), ("1.5kB", 1500.0), ("7B/s", 7.0)],
)
def test_parse_rate_reads_common_units(text: str, rate: float) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["", "fast", "-1MB/s", "1 iB/s", "10 parsecs"])
def test_parse_rate_refuses_malformed_rates(text: str) -> None:
    with pytest.raises(UsageError, match="malformed"):
        parse_rate(text)


@pytest.mark.parametrize("text", ["100", "100k"])
def test_parse_rate_refuses_rates_without_unit(text: str) -> None:
    with pytest.raises(UsageError, match="has no unit"):
        parse_rate(text)


@pytest.mark.parametrize(("text", "ports"), [("40000-40100", (40000, 40100)), ("22", (22, 22))])
def test_parse_ports_reads_ranges(text: str, ports: tuple[int, int]) -> None:
    assert parse_ports(text) == ports


@pytest.mark.parametrize("text", ["", "0", "5-4", "1-70000", "a-b"])
def test_parse_ports_refuses_malformed_ranges(text: str) -> None:
    with pytest.raises(UsageError, match="malformed"):
        parse_ports(text)


def test_settings_of_hosts_take_lower_limit_and_relay() -> None:
    one = LocalHost("one", LocalHostConfig(bandwidth_limit="10MB/s", copy_route="direct", copy_ports="5000-5001"))
    two = LocalHost("two", LocalHostConfig(bandwidth_limit="1MB/s", copy_route="relay"))
    assert settings_of_hosts(one, two) == CopySettings(bandwidth_limit=1e6, route="relay")
    assert ports_of(one, CopySettings()) == (5000, 5001)
    assert ports_of(two, CopySettings(ports=(7, 8))) == (7, 8)


@pytest.mark.parametrize(
    ("field", "value"), [("bandwidth_limit", "fast"), ("copy_ports", "x"), ("copy_route", "tunnel")]
)
def test_fleet_file_copy_settings_errors_name_the_field(field: str, value: str) -> None:
    with pytest.raises(UsageError, match=rf"fleet\.yaml: hosts\.a\.{field}"):
        parse_fleet(f"hosts: {{a: {{type: local, {field}: {value}}}}}", "fleet.yaml")


def test_meter_uses_recent_rate_and_remaining_bytes() -> None:
    now = 100.0
    meter = Meter(1000, 4, clock=lambda: now)
    meter.present("a", 400)
    assert meter.progress.eta_seconds is None, "objects found on the target do not count for the rate"
    meter.begin()
    now += 1.0
    meter.arrived(10)
    assert meter.progress.bytes_per_second == pytest.approx(10)
    for _ in range(20):
        now += 1.0
        meter.arrived(20)
    progress = meter.progress
    assert progress.bytes_per_second == pytest.approx(20, rel=0.1), "the slow start no longer counts"
    assert (progress.bytes_done, progress.objects_done) == (810, 1)
    assert progress.eta_seconds == pytest.approx(190 / progress.bytes_per_second)
    meter.arrived(190)
    assert meter.progress.eta_seconds == 0.0


def both(path: str, source: int, target: int | None, shared: bool, offset: int = 0) -> _ComparedFile:
    return _ComparedFile({"path": path, "offset": offset, "size": source, "sha256": ""}, target, shared)


METRICS, STATUS, LOG = "attempts/001/metrics.jsonl", "attempts/001/status-0.json", "attempts/001/log-0.txt"


@pytest.mark.parametrize(
    ("files", "copied", "unchanged", "aside"),
    [
        ([both(METRICS, 10, None, False), both(STATUS, 5, None, False)], [METRICS, STATUS], [], []),
        ([both(METRICS, 10, 10, True), both(STATUS, 5, 5, True)], [], [], []),
        ([both(METRICS, 10, 6, True)], [METRICS], [], []),
        ([both(METRICS, 10, 20, True), both(STATUS, 5, 5, False)], [], [METRICS, STATUS], []),
        ([both(METRICS, 10, 20, False), both(STATUS, 5, 5, False)], [METRICS, STATUS], [], [METRICS]),
        ([both(METRICS, 10, 6, False)], [METRICS], [], [METRICS]),
        ([both(LOG, 10, 50, False, offset=40)], [], [LOG], []),
        ([both(LOG, 10, 4, True)], [LOG], [], []),
        ([both("run.yaml", 10, 12, False)], ["run.yaml"], [], []),
    ],
    ids=[
        "new", "same", "source is further", "target is further", "another attempt, longer", "another attempt, shorter",
        "the target has the complete log", "the log grew", "the source's config",
    ],
)  # fmt: skip
def test_decide_keeps_the_later_history(
    files: list[_ComparedFile], copied: list[str], unchanged: list[str], aside: list[str]
) -> None:
    found = _decide(files)
    assert [entry["path"] for entry in found[0]] == copied, json.dumps(found[0])
    assert found[1:] == (unchanged, aside)
