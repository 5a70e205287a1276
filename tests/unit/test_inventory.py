"""What a machine says about itself, whatever kind of machine it is, and whatever it says."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from midstream.remote.machine import gauges, inventory, nvidia, tpu, tpu_metrics
from unit import recordings

GIB = 1 << 30
GAUGES = ("kind", "memory_total", "memory_used", "utilization", "temperature", "power", "power_limit", "capability")


def test_the_fields_recorded_are_those_that_are_asked_for():
    assert recordings.FIELDS == nvidia.FIELDS


@pytest.mark.parametrize("name", recordings.GPUS)
def test_gpus_of_many_kinds_are_read(name: str):
    text, expected = recordings.GPUS[name]
    found = [nvidia.gpu(row, {}) for row in nvidia.parse_rows(text, nvidia.FIELDS)]
    assert [tuple(each[key] for key in GAUGES) for each in found] == expected


@pytest.mark.parametrize("header", recordings.SMI_HEADERS)
def test_the_newest_cuda_that_the_driver_runs_is_read(header: str):
    assert nvidia.parse_cuda(f"Thu Mar  6\n+----+\n{header}\n|----|\n") == recordings.SMI_HEADERS[header]


def test_who_computes_is_read_as_far_as_it_is_told():
    holders, names = nvidia.parse_apps(recordings.APPS)
    assert holders == {"GPU-1": [4242, 17], "GPU-0": [99]}
    assert names == {4242: "python", 17: "/opt/conda/bin/python3.11, with a comma", 99: ""}


def test_systems_libraries_and_processors_are_read():
    for parse, cases in (
        (inventory.parse_os_release, recordings.OS_RELEASES),
        (inventory.parse_glibc, recordings.LIBCS),
        (inventory.parse_cpu_model, recordings.CPUS),
    ):
        assert {text: parse(text) for text in cases} == cases


def test_disks_are_those_that_something_can_be_kept_on():
    found = [
        tuple(each[key] for key in ("mount", "device", "total", "free")) for each in inventory.parse_df(recordings.DF)
    ]
    assert found == recordings.DF_READ
    alone = inventory.parse_df("overlay 100 10 90 10% /\n")
    assert [each["mount"] for each in alone] == ["/"], "in a container the root is all there is"


def test_ports_of_infiniband_are_read():
    found = inventory.parse_infiniband(recordings.INFINIBAND)
    keys = ("device", "port", "state", "gigabits", "layer")
    assert [tuple(each[key] for key in keys) for each in found] == recordings.INFINIBAND_READ


def test_ports_of_infiniband_are_found(tmp_path: Path):
    port = tmp_path / "mlx5_0" / "ports" / "1"
    port.mkdir(parents=True)
    for name, text in (("state", "4: ACTIVE\n"), ("rate", "400 Gb/sec (4X NDR)\n"), ("link_layer", "InfiniBand\n")):
        (port / name).write_text(text)
    assert inventory.infiniband(str(tmp_path)) == [
        {"device": "mlx5_0", "port": 1, "state": "active", "gigabits": 400.0, "layer": "InfiniBand"}
    ]
    assert inventory.infiniband(str(tmp_path / "none")) == []


def test_processes_are_shown_without_what_may_be_secret():
    found = inventory.parse_processes(recordings.PS)
    assert [(each["pid"], each["user"], each["command"]) for each in found] == recordings.PS_READ
    assert "secret" not in json.dumps(found)


def test_processes_of_this_machine_are_named():
    [found] = inventory.processes([os.getpid()])
    assert found["pid"] == os.getpid()
    assert found["user"]
    assert found["command"]


def test_a_process_that_cannot_be_seen_has_the_name_that_the_driver_gives_it(tmp_path: Path):
    assert inventory.processes([77], {77: "/opt/conda/bin/python"}, str(tmp_path)) == [
        {"pid": 77, "user": "", "command": "python"}
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("NTPSynchronized=yes\n", True),
        ("NTPSynchronized=no\n", False),
        ("no\n", False),
        ("Failed to connect to bus", None),
    ],
)
def test_whether_the_clock_follows_a_server_is_read(text: str, expected: bool | None):
    assert inventory.parse_clock(text) is expected


def test_this_machine_has_an_inventory():
    found = inventory.collect()
    assert found["kernel"]
    assert found["disks"]
    assert json.loads(json.dumps(found)) == found


def test_memory_without_what_is_available_is_what_is_free():
    assert gauges.parse_memory("MemTotal: 100 kB\nMemFree: 40 kB\n") == {"memory_total": 102400, "memory_used": 61440}
    assert gauges.parse_memory("") == {"memory_total": 0, "memory_used": 0}


# ------------------------------------------------------------------------------------------------- text of any shape

ALL_TEXT = "\n".join(
    [*(text for text, _ in recordings.GPUS.values()), *recordings.SMI_HEADERS, recordings.APPS, *recordings.OS_RELEASES,
     *recordings.LIBCS, *recordings.CPUS, recordings.DF, recordings.INFINIBAND, recordings.PS, "cpu  1 2 3 4 5 6 7 8",
     "MemTotal:       65536 kB", "NTPSynchronized=yes"]
)  # fmt: skip
PARSERS: list[Callable[[str], Any]] = [
    lambda text: [nvidia.gpu(row, {}) for row in nvidia.parse_rows(text, nvidia.FIELDS)],
    lambda text: [nvidia.gpu(row, {}) for row in nvidia.parse_rows(text, ("index", "name"))],
    lambda text: nvidia.parse_rows(text, ()),
    nvidia.parse_apps, nvidia.parse_cuda, nvidia.number, nvidia.version, inventory.parse_os_release,
    inventory.parse_glibc, inventory.parse_cpu_model, inventory.parse_df, inventory.parse_infiniband,
    inventory.parse_clock,
    inventory.parse_processes, gauges.parse_ticks, gauges.parse_memory,
]  # fmt: skip


@st.composite
def damaged(draw: st.DrawFn) -> str:
    """A recording with pieces cut out, doubled and put in."""
    text = ALL_TEXT
    for _ in range(draw(st.integers(1, 6))):
        first = draw(st.integers(0, len(text)))
        last = min(len(text), first + draw(st.integers(0, 400)))
        middle = draw(st.one_of(st.just(""), st.just(text[first:last] * 2), st.text(max_size=20)))
        text = text[:first] + middle + text[last:]
    return text


@seed(5)
@settings(max_examples=150, deadline=None, database=None)
@given(text=st.one_of(damaged(), st.text(), st.from_regex(r"[0-9², |:%/.\-]*\n[0-9², |:%/.\-]*")))
def test_no_text_makes_a_parser_raise(text: str):
    for parse in PARSERS:
        json.dumps(parse(text), allow_nan=False)


@seed(6)
@settings(max_examples=200, deadline=None, database=None)
@given(message=st.binary(max_size=80))
def test_no_bytes_make_the_runtimes_parser_raise(message: bytes):
    tpu_metrics.parse(message)


# ---------------------------------------------------------------------------------------------------- TPU's runtime


def varint(value: int) -> bytes:
    data = b""
    value &= (1 << 64) - 1
    while value > 127:
        data, value = data + bytes([value & 127 | 128]), value >> 7
    return data + bytes([value])


def field(number: int, value: bytes | int | float) -> bytes:
    import struct

    if isinstance(value, float):
        return varint(number << 3 | 1) + struct.pack("<d", value)
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def answer(values: dict[int, int | float]) -> bytes:
    """A MetricResponse as libtpu's own messages lay it out."""
    metrics = b""
    for device, value in values.items():
        attribute = field(1, b"device-id") + field(2, field(3, device))
        stamp = field(1, 1_700_000_000) + field(2, 5)
        gauge = field(1, value) if isinstance(value, float) else field(2, value)
        metrics += field(3, field(1, attribute) + field(2, stamp) + field(3, gauge))
    return field(1, field(1, b"name") + field(2, b"what it is") + metrics)


@pytest.fixture
def runtime() -> Iterator[tuple[dict[str, bytes], tuple[str, int]]]:
    """A real gRPC server with the runtime's service."""
    grpc = pytest.importorskip("grpc")
    answers: dict[str, bytes] = {}

    def get(request: bytes, context: Any) -> bytes:
        name = request[2:].decode()
        if name not in answers:
            context.abort(grpc.StatusCode.NOT_FOUND, "no such metric")
        return answers[name]

    server = grpc.server(futures.ThreadPoolExecutor(2))
    service, method = tpu_metrics.METHOD.strip("/").split("/")
    handler = grpc.unary_unary_rpc_method_handler(get)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield answers, ("127.0.0.1", port)
    server.stop(None).wait()


def test_the_runtime_is_asked_over_its_own_protocol(runtime: tuple[dict[str, bytes], tuple[str, int]]):
    answers, address = runtime
    answers[tpu.HBM_TOTAL] = answer({0: 16 * GIB, 1: 16 * GIB})
    answers[tpu.HBM_USED] = answer({0: 3 * GIB, 1: 0})
    answers[tpu.DUTY] = answer({0: 87.5, 1: 0.0})
    metrics = tpu_metrics.read([tpu.HBM_TOTAL, tpu.HBM_USED, tpu.DUTY], address)
    found = tpu.devices(["0x0063", "0x0063"], [7], metrics)
    assert [(each["memory_used"], each["utilization"]) for each in found] == [(3 * GIB, 0.875), (0, 0.0)]


def test_a_metric_that_the_runtime_does_not_know_is_left_out(runtime: tuple[dict[str, bytes], tuple[str, int]]):
    answers, address = runtime
    answers[tpu.HBM_TOTAL] = answer({0: 16 * GIB})
    assert tpu_metrics.read([tpu.HBM_TOTAL, tpu.DUTY], address) == {tpu.HBM_TOTAL: {0: float(16 * GIB)}}
    [found] = tpu.devices(["0x0063"], [7], {tpu.HBM_TOTAL: {0: 17.0 * GIB}})
    assert (found["memory_total"], found["memory_used"], found["utilization"]) == (17 * GIB, None, None)


def test_what_is_no_runtime_gives_nothing():
    import socket
    import threading

    assert tpu_metrics.read([tpu.DUTY], ("127.0.0.1", 9)) == {}
    with socket.create_server(("127.0.0.1", 0)) as server:

        def reply() -> None:
            peer, _ = server.accept()
            with peer, contextlib.suppress(OSError):  # it has heard enough
                peer.recv(1)
                peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                peer.shutdown(socket.SHUT_WR)
                while peer.recv(4096):
                    pass

        thread = threading.Thread(target=reply)
        thread.start()
        assert tpu_metrics.read([tpu.DUTY], server.getsockname()) == {}
        thread.join()


def test_duty_by_chip_counts_for_both_devices_of_a_chip():
    found = tpu.devices(["0x0027", "0x0027"], [], {tpu.DUTY: {0: 50.0, 1: 10.0}})
    assert [each["utilization"] for each in found] == [0.5, 0.5, 0.1, 0.1]
