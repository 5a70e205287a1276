"""Inventory of a machine: parsers for many kinds of machine and any output."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from midstream_host.machine import gauges, inventory, nvidia, rates, tpu, tpu_metrics
from support import recorded_outputs as recorded

GIB = 1 << 30
GAUGES = ("kind", "memory_total", "memory_used", "utilization", "temperature", "power", "power_limit", "capability")


def test_recordings_have_the_queried_fields() -> None:
    assert recorded.FIELDS == nvidia.FIELDS


@pytest.mark.parametrize("name", recorded.GPUS)
def test_parse_rows_reads_gpus_of_many_kinds(name: str) -> None:
    text, expected = recorded.GPUS[name]
    found = [nvidia.gpu(row, {}) for row in nvidia.parse_rows(text, nvidia.FIELDS)]
    assert [tuple(each[key] for key in GAUGES) for each in found] == expected


@pytest.mark.parametrize("header", recorded.SMI_HEADERS)
def test_parse_cuda_reads_version_of_header(header: str) -> None:
    assert nvidia.parse_cuda(f"Thu Mar  6\n+----+\n{header}\n|----|\n") == recorded.SMI_HEADERS[header]


def test_parse_apps_reads_processes_by_gpu() -> None:
    apps = nvidia.parse_apps(recorded.APPS)
    assert apps.pids == {"GPU-1": [4242, 17], "GPU-0": [4242, 99]}
    assert apps.names == {4242: "python", 17: "/opt/conda/bin/python3.11, with a comma", 99: ""}
    assert apps.memory == {4242: 1536 << 20, 99: 2048 << 20}, "the sum over its GPUs; unknown for process 17"


def test_parses_os_release_glibc_and_cpu_model() -> None:
    for parse, cases in (
        (inventory.parse_os_release, recorded.OS_RELEASES),
        (inventory.parse_glibc, recorded.LIBCS),
        (inventory.parse_cpu_model, recorded.CPUS),
    ):
        assert {text: parse(text) for text in cases} == cases


def test_parse_df_lists_persistent_disks() -> None:
    found = [
        tuple(each[key] for key in ("mount", "device", "total", "free")) for each in inventory.parse_df(recorded.DF)
    ]
    assert found == recorded.DF_READ
    alone = inventory.parse_df("overlay 100 10 90 10% /\n")
    assert [each["mount"] for each in alone] == ["/"], "a container has only the root"


def test_parse_infiniband_reads_ports() -> None:
    found = inventory.parse_infiniband(recorded.INFINIBAND)
    keys = ("device", "port", "state", "gigabits", "layer")
    assert [tuple(each[key] for key in keys) for each in found] == recorded.INFINIBAND_READ


def test_infiniband_finds_ports_in_sysfs(tmp_path: Path) -> None:
    port = tmp_path / "mlx5_0" / "ports" / "1"
    port.mkdir(parents=True)
    for name, text in (("state", "4: ACTIVE\n"), ("rate", "400 Gb/sec (4X NDR)\n"), ("link_layer", "InfiniBand\n")):
        (port / name).write_text(text)
    assert inventory.infiniband(str(tmp_path)) == [
        {"device": "mlx5_0", "port": 1, "state": "active", "gigabits": 400.0, "layer": "InfiniBand"}
    ]
    assert inventory.infiniband(str(tmp_path / "none")) == []


def test_parse_processes_omits_arguments_that_may_be_secret() -> None:
    found = inventory.parse_processes(recorded.PS, 1e6, {4242: 1 << 30}, "/data/root")
    assert [tuple(each.values()) for each in found] == recorded.PS_READ
    assert "secret" not in json.dumps(found)


def test_processes_of_this_machine_have_user_and_command() -> None:
    [found] = inventory.processes([os.getpid()])
    elapsed = subprocess.run(["ps", "-o", "etimes=", "-p", str(os.getpid())], capture_output=True, text=True)
    assert abs(found["started"] + int(elapsed.stdout) - time.time()) < 60
    assert found["pid"] == os.getpid()
    assert found["user"]
    assert found["command"]


def test_invisible_process_has_the_drivers_name(tmp_path: Path) -> None:
    apps = nvidia.Apps({}, {77: "/opt/conda/bin/python"}, {77: 5})
    assert inventory.processes([77], apps, proc=str(tmp_path)) == [
        {"pid": 77, "user": "", "command": "python", "started": None, "memory": 5, "run": ""}
    ]


@pytest.mark.parametrize(
    ("words", "run"),
    [
        (["python", "--config_path", "/r/runs/nano/run.yaml"], "nano"),
        (["python", "/r/runs/../../etc/passwd"], ""),
        (["python", "/r/runs/"], ""),
        (["python", "/other/runs/nano/run.yaml"], ""),
        (["python", f"/r/runs/{'x' * 200}/run.yaml"], ""),
    ],
)
def test_run_of_a_process_is_named_by_its_command_line(words: list[str], run: str) -> None:
    assert inventory.run_of(words, "/r") == run
    assert inventory.run_of(words, "") == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("NTPSynchronized=yes\n", True),
        ("NTPSynchronized=no\n", False),
        ("no\n", False),
        ("Failed to connect to bus", None),
    ],
)
def test_parse_clock_reads_ntp_synchronization(text: str, expected: bool | None) -> None:
    assert inventory.parse_clock(text) is expected


def test_collect_describes_this_machine() -> None:
    found = inventory.collect()
    assert found["kernel"]
    assert found["disks"]
    assert json.loads(json.dumps(found)) == found


def test_parse_memory_without_available_uses_free() -> None:
    assert gauges.parse_memory("MemTotal: 100 kB\nMemFree: 40 kB\n") == {"memory_total": 102400, "memory_used": 61440}
    assert gauges.parse_memory("") == {"memory_total": 0, "memory_used": 0}


# ------------------------------------------------------------------------------------------------- text of any shape

ALL_TEXT = "\n".join(
    [*(text for text, _ in recorded.GPUS.values()), *recorded.SMI_HEADERS, recorded.APPS, *recorded.OS_RELEASES,
     *recorded.LIBCS, *recorded.CPUS, recorded.DF, recorded.INFINIBAND, recorded.PS, "cpu  1 2 3 4 5 6 7 8",
     "MemTotal:       65536 kB", "NTPSynchronized=yes"]
)  # fmt: skip
PARSERS: list[Callable[[str], Any]] = [
    lambda text: [nvidia.gpu(row, {}) for row in nvidia.parse_rows(text, nvidia.FIELDS)],
    lambda text: [nvidia.gpu(row, {}) for row in nvidia.parse_rows(text, ("index", "name"))],
    lambda text: nvidia.parse_rows(text, ()),
    nvidia.parse_apps, nvidia.parse_cuda, nvidia.number, nvidia.version, inventory.parse_os_release,
    inventory.parse_glibc, inventory.parse_cpu_model, inventory.parse_df, inventory.parse_infiniband,
    inventory.parse_clock,
    lambda text: inventory.parse_processes(text, 1e9, {1: 2}, "/"), gauges.parse_ticks, gauges.parse_memory,
    lambda text: rates.parse_network(text, ("eth0",)), rates.parse_rdma, lambda text: rates.parse_disks(text, ("sda",)),
]  # fmt: skip


@st.composite
def damaged(draw: st.DrawFn) -> str:
    """Draw a recording with pieces removed, repeated and inserted."""
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
def test_parsers_never_raise_on_any_text(text: str) -> None:
    for parse in PARSERS:
        json.dumps(parse(text), allow_nan=False)


@seed(6)
@settings(max_examples=200, deadline=None, database=None)
@given(message=st.binary(max_size=80))
def test_tpu_metrics_parser_never_raises_on_any_bytes(message: bytes) -> None:
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
    """Encode a MetricResponse of libtpu."""
    metrics = b""
    for device, value in values.items():
        attribute = field(1, b"device-id") + field(2, field(3, device))
        stamp = field(1, 1_700_000_000) + field(2, 5)
        gauge = field(1, value) if isinstance(value, float) else field(2, value)
        metrics += field(3, field(1, attribute) + field(2, stamp) + field(3, gauge))
    return field(1, field(1, b"name") + field(2, b"what it is") + metrics)


@pytest.fixture
def runtime() -> Iterator[tuple[dict[str, bytes], tuple[str, int]]]:
    """Run a gRPC server with the service of the TPU runtime."""
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


def test_tpu_metrics_are_read_over_grpc(runtime: tuple[dict[str, bytes], tuple[str, int]]) -> None:
    answers, address = runtime
    answers[tpu.HBM_TOTAL] = answer({0: 16 * GIB, 1: 16 * GIB})
    answers[tpu.HBM_USED] = answer({0: 3 * GIB, 1: 0})
    answers[tpu.DUTY] = answer({0: 87.5, 1: 0.0})
    metrics = tpu_metrics.read([tpu.HBM_TOTAL, tpu.HBM_USED, tpu.DUTY], address)
    found = tpu.devices(["0x0063", "0x0063"], [7], metrics)
    assert [(each["memory_used"], each["utilization"]) for each in found] == [(3 * GIB, 0.875), (0, 0.0)]


def test_unknown_tpu_metric_is_left_out(runtime: tuple[dict[str, bytes], tuple[str, int]]) -> None:
    answers, address = runtime
    answers[tpu.HBM_TOTAL] = answer({0: 16 * GIB})
    assert tpu_metrics.read([tpu.HBM_TOTAL, tpu.DUTY], address) == {tpu.HBM_TOTAL: {0: float(16 * GIB)}}
    [found] = tpu.devices(["0x0063"], [7], {tpu.HBM_TOTAL: {0: 17.0 * GIB}})
    assert (found["memory_total"], found["memory_used"], found["utilization"]) == (17 * GIB, None, None)


def test_tpu_metrics_without_runtime_are_empty() -> None:
    import socket
    import threading

    assert tpu_metrics.read([tpu.DUTY], ("127.0.0.1", 9)) == {}
    with socket.create_server(("127.0.0.1", 0)) as server:

        def reply() -> None:
            peer, _ = server.accept()
            with peer, contextlib.suppress(OSError):  # the client may close early
                peer.recv(1)
                peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                peer.shutdown(socket.SHUT_WR)
                while peer.recv(4096):
                    pass

        thread = threading.Thread(target=reply)
        thread.start()
        assert tpu_metrics.read([tpu.DUTY], server.getsockname()) == {}
        thread.join()


def test_duty_cycle_of_chip_counts_for_both_devices() -> None:
    found = tpu.devices(["0x0027", "0x0027"], [], {tpu.DUTY: {0: 50.0, 1: 10.0}})
    assert [each["utilization"] for each in found] == [0.5, 0.5, 0.1, 0.1]
