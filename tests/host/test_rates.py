"""Rates of network, RDMA ports and disks from the kernel's counters."""

from __future__ import annotations

from pathlib import Path

import pytest

from midstream_host.machine import rates
from midstream_host.machine.rates import CounterRates

NETWORK = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop
    lo: 900 5 0 0 0 0 0 0 900 5 0 0 0 0 0 0
  eth0: 1000 7 0 0 0 0 0 0 2000 8 0 0 0 0 0 0
 bond0: 1000 7 0 0 0 0 0 0 2000 8 0 0 0 0 0 0
  eth1:2000 7 0 0 0 0 0 0 30 8 0 0 0 0 0 0
garbage: x
"""
DISKS = """\
   8       0 sda 10 0 100 5 20 0 200 6 0 7 8
   8       1 sda1 10 0 100 5 20 0 200 6 0 7 8
   7       0 loop0 10 0 100 5 20 0 200 6 0 7 8
 253       0 dm-0 10 0 100 5 20 0 200 6 0 7 8
 259       0 nvme0n1 1 0 8 5 2 0 16 6 0 7 8
   8      16 sdb 1 0
"""


def test_physical_interfaces_are_counted_once() -> None:
    assert rates.parse_network(NETWORK, ["eth0", "eth1", "absent"]) == {
        "network_received": {"eth0": 1000, "eth1": 2000},
        "network_sent": {"eth0": 2000, "eth1": 30},
    }


def test_container_has_its_virtual_interfaces_and_no_loopback() -> None:
    assert rates.parse_network(NETWORK, [])["network_received"] == {"eth0": 1000, "bond0": 1000, "eth1": 2000}
    assert rates.parse_network(NETWORK.split("\n  eth0")[0], [])["network_received"] == {}


def test_disks_are_counted_without_partitions_and_virtual_ones() -> None:
    blocks = ["sda", "sdb", "loop0", "dm-0", "nvme0n1"]
    assert rates.parse_disks(DISKS, blocks) == {
        "disk_read": {"sda": 51200, "nvme0n1": 4096},
        "disk_written": {"sda": 102400, "nvme0n1": 8192},
    }


def test_rdma_counters_are_words_of_four_bytes() -> None:
    assert rates.parse_rdma("mlx5_0:1 10 20\nmlx5_1:1 - 3\n")["rdma_received"] == {"mlx5_0:1": 40}


def test_rate_is_the_growth_of_devices_in_both_readings() -> None:
    before = {"disk_read": {"a": 100, "b": 5}, "network_sent": {"eth0": 50}}
    now = {"disk_read": {"a": 300, "new": 10**15}, "network_sent": {"eth0": 10}}
    found = rates.between(before, now, 2.0)
    assert found["disk_read"] == 100
    assert found["network_sent"] is None, "its counter was reset"
    assert found["rdma_sent"] is None, "the host has no such device"


@pytest.mark.parametrize("seconds", [0.0, -5.0])
def test_no_rate_without_time_between_readings(seconds: float) -> None:
    assert set(rates.between({"disk_read": {"a": 1}}, {"disk_read": {"a": 2}}, seconds).values()) == {None}


def test_rates_are_read_from_the_kernels_files(tmp_path: Path) -> None:
    port = tmp_path / "sys/class/infiniband/m0/ports/1/counters"
    for folder in (tmp_path / "proc/net", tmp_path / "sys/class/net/eth0/device", tmp_path / "sys/block/sda", port):
        folder.mkdir(parents=True)
    (tmp_path / "proc/net/dev").write_text(NETWORK)
    (tmp_path / "proc/diskstats").write_text(DISKS)
    for name in ("port_rcv_data", "port_xmit_data"):
        (port / name).write_text("7\n")
    read = CounterRates(str(tmp_path / "proc"), str(tmp_path / "sys")).read()
    assert read == dict.fromkeys(rates.NAMES, 0)


def test_host_without_such_files_has_no_rates(tmp_path: Path) -> None:
    assert CounterRates(str(tmp_path), str(tmp_path)).read() == dict.fromkeys(rates.NAMES)
