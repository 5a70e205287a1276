"""Accelerators found without their libraries."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from midstream_host.machine.accelerators import Accelerators, tpu_apps, tpus
from midstream_host.machine.nvidia import Nvidia

GIB = 1 << 30

# A stand-in for nvidia-smi that supports some fields and refuses a query with any other.
NVIDIA_SMI = """\
#!/bin/sh
echo "$1" >> {calls}
case $1 in
--query-gpu=*)
    fields=${{1#--query-gpu=}}
    for field in $(echo "$fields" | tr , ' '); do
        case " {known} " in
        *" $field "*) ;;
        *) echo "Field \\"$field\\" is not a valid field to query."; exit 2 ;;
        esac
    done
    for index in 0 1; do
        line=
        for field in $(echo "$fields" | tr , ' '); do
            case $field in
            index) value=$index ;;
            uuid) value=GPU-$index ;;
            name) value="NVIDIA A100-SXM4-80GB" ;;
            memory.total) value=81920 ;;
            memory.used) value=1024 ;;
            utilization.gpu) [ $index = 0 ] && value=93 || value="[N/A]" ;;
            esac
            line="$line${{line:+, }}$value"
        done
        echo "$line"
    done ;;
--query-compute-apps=*) printf 'GPU-1, 4242, 512, python\\nGPU-1, 17, [N/A], a\\nGPU-0, [N/A], [N/A], [N/A]\\n' ;;
esac
"""


def nvidia_smi(directory: Path, known: str) -> Nvidia:
    file = directory / "nvidia-smi"
    file.write_text(NVIDIA_SMI.format(known=known, calls=directory / "calls"))
    file.chmod(0o755)
    return Nvidia(str(file))


def test_gpus_have_memory_utilization_and_process_ids(tmp_path: Path) -> None:
    found = nvidia_smi(tmp_path, "index uuid name memory.total memory.used utilization.gpu").look()
    assert found == [
        {
            "index": 0, "kind": "NVIDIA A100-SXM4-80GB", "memory_total": 80 * GIB, "memory_used": GIB,
            "utilization": 0.93, "pids": [], "temperature": None, "power": None, "power_limit": None,
            "capability": "",
        },
        {
            "index": 1, "kind": "NVIDIA A100-SXM4-80GB", "memory_total": 80 * GIB, "memory_used": GIB,
            "utilization": None, "pids": [17, 4242], "temperature": None, "power": None, "power_limit": None,
            "capability": "",
        },
    ]  # fmt: skip


def test_old_driver_is_queried_for_supported_fields_only(tmp_path: Path) -> None:
    nvidia = nvidia_smi(tmp_path, "index name memory.total")
    expected = {"index": 0, "kind": "NVIDIA A100-SXM4-80GB", "memory_total": 80 * GIB, "memory_used": None}
    assert expected.items() <= nvidia.look()[0].items()
    (tmp_path / "calls").unlink()
    assert len(nvidia.look()) == 2
    assert (
        tmp_path / "calls"
    ).read_text() == "--query-gpu=index,name,memory.total\n"  # one query: the supported fields are cached


def test_no_gpus_without_nvidia_smi(tmp_path: Path) -> None:
    nvidia = Nvidia(str(tmp_path / "nvidia-smi"))
    assert nvidia.look() == []
    assert not nvidia.present


def test_failing_driver_is_queried_again(tmp_path: Path) -> None:
    nvidia = nvidia_smi(tmp_path, "nothing")
    assert nvidia.look() == []
    assert nvidia.present
    assert len(nvidia_smi(tmp_path, "index uuid name").look()) == 2
    assert len(nvidia.look()) == 2, "a driver that answers again is used again"


def test_tpus_are_found_on_pci_bus_with_process_ids(tmp_path: Path) -> None:
    bus, proc = tmp_path / "bus", tmp_path / "proc"
    for slot, vendor, device in (("04", "0x1ae0", "0x005e"), ("05", "0x1ae0", "0x005e"), ("06", "0x8086", "0x005e")):
        (bus / slot).mkdir(parents=True)
        (bus / slot / "vendor").write_text(vendor + "\n")
        (bus / slot / "device").write_text(device + "\n")
    for pid, path in (("77", "/dev/vfio/0"), ("78", "/dev/vfio/vfio"), ("79", "/dev/accel1"), ("self", "/dev/accel0")):
        (proc / pid / "fd").mkdir(parents=True)
        os.symlink(path, proc / pid / "fd" / "3")
    found = tpus(str(bus), str(proc))
    assert found == [{"index": index, "kind": "TPU v4", "memory_total": 32 * GIB, "pids": [77, 79]} for index in (0, 1)]


def test_dual_core_tpu_chip_is_two_devices(tmp_path: Path) -> None:
    (tmp_path / "04").mkdir()
    (tmp_path / "04" / "vendor").write_text("0x1ae0")
    (tmp_path / "04" / "device").write_text("0x0027")
    assert [device["index"] for device in tpus(str(tmp_path), str(tmp_path / "none"))] == [0, 1]


def test_virtual_devices_come_from_fleet_file() -> None:
    assert Accelerators(devices=3).latest() == [{"index": index, "kind": "cpu"} for index in range(3)]


def test_processes_have_user_run_time_and_memory(tmp_path: Path) -> None:
    script = nvidia_smi(tmp_path, "index uuid name")
    file = tmp_path / "nvidia-smi"
    argv = [sys.executable, "-c", "input()", str(tmp_path / "runs" / "nano" / "run.yaml")]
    with subprocess.Popen(argv, stdin=subprocess.PIPE) as process:
        file.write_text(file.read_text().replace("4242", str(process.pid)))
        found = Accelerators(devices=None, smi=script, root=str(tmp_path))
        assert [each["index"] for each in found.latest(wait=120)] == [0, 1]
        [user] = [each for each in found.facts()["users"] if each["pid"] == process.pid]
        process.communicate(b"\n")
    assert (user["run"], user["memory"], bool(user["user"])) == ("nano", 512 << 20, True)
    assert -2 <= time.time() - user["started"] < 600, "`started` is rounded to seconds"


def test_memory_of_chips_is_that_of_their_only_process() -> None:
    chips = [{"index": index, "kind": "TPU v4", "pids": [7], "memory_used": 5} for index in (0, 1)]
    assert tpu_apps(chips).memory == {7: 10}
    assert tpu_apps([dict(chips[0], pids=[7, 8]), chips[1]]).memory == {}, "which of them has it is not known"
    assert tpu_apps([]).memory == {}


def test_slow_query_does_not_block_latest(tmp_path: Path) -> None:
    file = tmp_path / "nvidia-smi"
    answer = tmp_path / "answer"
    os.mkfifo(answer)
    file.write_text(f"#!/bin/sh\nexec cat {answer}\n")
    file.chmod(0o755)
    nvidia = Nvidia(str(file), timeout=3600.0)
    assert Accelerators(devices=None, smi=nvidia).latest(wait=0.1) == []
    with answer.open("w"):  # its end is the answer to the query, which has waited for it until here
        file.unlink()  # a further query would wait for ever


def test_nvidia_smi_that_cannot_be_started_now_is_tried_again(tmp_path: Path) -> None:
    smi = nvidia_smi(tmp_path, "index uuid name memory.total memory.used utilization.gpu")
    program = Path(smi._command)
    text = program.read_text()
    program.write_bytes(b"\0")  # an OSError other than that of a missing program, as without memory
    assert smi.look() == []
    program.write_text(text)
    assert len(smi.look()) == 2


def test_poll_that_failed_is_repeated(tmp_path: Path) -> None:
    class FailsOnce(Nvidia):
        failed = False

        def look(self) -> list[dict[str, Any]]:
            if not self.failed:
                self.failed = True
                raise MemoryError
            return super().look()

    nvidia_smi(tmp_path, "index uuid name memory.total memory.used utilization.gpu")
    found = Accelerators(devices=None, every=0.01, smi=FailsOnce(str(tmp_path / "nvidia-smi")))
    assert len(found.latest(wait=60.0)) == 2
