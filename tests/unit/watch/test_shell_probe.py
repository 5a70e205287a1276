"""The probe of a host without Python: shell script and parser."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from midstream.watch.shell_probe import POLL_SIZE_LIMIT, SECTIONS, ShellProbeParser, command
from midstream.watch.snapshot import LIVE
from midstream.watch.snapshot_store import SnapshotStore
from midstream_host.machine import rates
from support import recorded_outputs as recorded
from support.simulated_gpus import KIND, uuid, write_nvidia_smi

GIB = 1 << 30


def _exited_pid() -> int:
    """Return the pid of an exited process."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


EXITED = _exited_pid()
SHELLS = [shell for shell in ("dash", "bash", "busybox") if shutil.which(shell)]


def events(text: str | bytes, devices: int | None = None) -> list[dict[str, Any]]:
    reader = ShellProbeParser(devices)
    data = text.encode() if isinstance(text, str) else text
    return [dict(event) for line in data.splitlines(keepends=True) for event in reader.parse(line)]


@pytest.fixture
def top(tmp_path: Path) -> Path:
    """Create /proc, /sys and /etc of a machine with four TPU chips and InfiniBand."""
    for slot in range(4):
        chip = tmp_path / "sys/bus/pci/devices" / f"0000:00:0{slot}.0"
        chip.mkdir(parents=True)
        (chip / "vendor").write_text("0x1ae0\n")
        (chip / "device").write_text("0x0063\n")
    other = tmp_path / "sys/bus/pci/devices/0000:01:00.0"
    other.mkdir()
    (other / "vendor").write_text("0x8086\n")
    for pid, path in ((os.getpid(), "/dev/vfio/0"), (78, "/dev/vfio/vfio"), (EXITED, "/dev/accel1")):
        (tmp_path / "proc" / str(pid) / "fd").mkdir(parents=True)
        os.symlink(path, tmp_path / "proc" / str(pid) / "fd" / "3")
    port = tmp_path / "sys/class/infiniband/mlx5_0/ports/1"
    port.mkdir(parents=True)
    for name, text in (("state", "4: ACTIVE\n"), ("rate", "200 Gb/sec (4X HDR)\n"), ("link_layer", "InfiniBand\n")):
        (port / name).write_text(text)
    (tmp_path / "sys/class/net/eth0/device").mkdir(parents=True)
    (tmp_path / "sys/block/sda").mkdir(parents=True)
    (tmp_path / "proc/net").mkdir()
    lines = ("Inter-|", " face |", "  eth0: 7 0 0 0 0 0 0 0 8 0 0", "  docker0: 9 0 0 0 0 0 0 0 9 0 0")
    (tmp_path / "proc/net/dev").write_text("\n".join(lines) + "\n")
    (tmp_path / "proc/diskstats").write_text("   8       0 sda 10 0 100 5 20 0 200 6 0 7 8\n")
    (tmp_path / "proc/stat").write_text("cpu  100 0 100 700 100 0 0 0 0 0\ncpu0 1 2 3\n")
    (tmp_path / "proc/meminfo").write_text("MemTotal: 1000 kB\nMemFree: 10 kB\nMemAvailable: 400 kB\nCached: 5 kB\n")
    (tmp_path / "proc/cpuinfo").write_text("processor: 0\nmodel name\t: A  CPU\nmodel name\t: A  CPU\n")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/os-release").write_text('NAME=x\nPRETTY_NAME="Some Linux 1.2"\n')
    return tmp_path


class Shell:
    """The shell probe, on a machine made of files."""

    def __init__(
        self,
        shell: str,
        top: Path,
        root: str = "/nowhere/at/all",
        path: str | None = None,
        visible: list[str] | None = None,
    ) -> None:
        argv = command(root, 5.0)
        argv = [*([shell, "sh"] if shell == "busybox" else [shell]), *argv[1:-1], str(top)]
        env = {**os.environ, **({"PATH": path} if path else {})}
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
        self.reader = ShellProbeParser(visible=visible)

    def until(self, event: str) -> list[dict[str, Any]]:
        """Return the events up to the first of this kind."""
        assert self.process.stdout is not None
        found: list[dict[str, Any]] = []
        for line in self.process.stdout:
            for parsed in self.reader.parse(line):
                found.append(dict(parsed))
            if any(each["event"] == event for each in found):
                return found
        raise AssertionError(f"no {event} in {found}")

    def send(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest, top: Path) -> Iterator[Shell]:
    made = Shell(request.param, top)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("visible", "kinds", "users"),
    [
        (["1"], [KIND], [os.getpid()]),
        (["0"], [KIND], []),
        (["MIG-b"], [f"{KIND} MIG 2g.20gb"], []),
        (None, [KIND, KIND], [os.getpid()]),
    ],
)
def test_gpus_that_are_not_ours_are_left_out(
    top: Path, tmp_path_factory: pytest.TempPathFactory, visible: list[str] | None, kinds: list[str], users: list[int]
) -> None:
    folder = tmp_path_factory.mktemp("bin")
    write_nvidia_smi(folder, 2, {uuid(1): [os.getpid()]}, {0: [("1g.10gb", "MIG-a"), ("2g.20gb", "MIG-b")]})
    shell = Shell(SHELLS[0], top, path=f"{folder}:{os.environ['PATH']}", visible=visible)
    _, facts, beat = shell.until("beat")
    shell.close()
    assert [each["kind"] for each in beat["accelerators"]] == kinds
    assert [user["pid"] for user in facts["users"]] == users


def test_machine_is_described_completely(shell: Shell) -> None:
    hello, facts, beat = shell.until("beat")
    assert hello["hostname"] == os.uname().nodename
    assert hello["python"] == ""
    assert hello["cpus"] == os.cpu_count()
    assert hello["platform"].startswith("Linux-")
    assert (facts["system"], facts["cpu_model"]) == ("Some Linux 1.2", "A CPU")
    assert facts["infiniband"] == [
        {"device": "mlx5_0", "port": 1, "state": "active", "gigabits": 200.0, "layer": "InfiniBand"}
    ]
    assert facts["disks"]
    assert [user["pid"] for user in facts["users"]] == [os.getpid()], "the other has exited"
    assert (beat["memory_total"], beat["memory_used"]) == (1000 << 10, 600 << 10)
    assert beat["disk_total"] > beat["disk_free"] > 0
    assert [(each["kind"], each["memory_total"]) for each in beat["accelerators"]] == [("TPU v5e", 16 * GIB)] * 4
    assert beat["accelerators"][0]["pids"] == sorted([os.getpid(), EXITED])
    assert abs(beat["time"] - time.time()) < 60
    assert {beat[name] for name in rates.NAMES} == {None}, "a rate needs two polls"
    assert shell.reader._counted is not None
    assert shell.reader._counted[1] == {
        "network_received": {"eth0": 7}, "network_sent": {"eth0": 8}, "rdma_received": {}, "rdma_sent": {},
        "disk_read": {"sda": 51200}, "disk_written": {"sda": 102400},
    }  # fmt: skip


def test_pings_are_answered_during_a_poll(shell: Shell) -> None:
    shell.send('{"pace": 3.0}')
    shell.send('{"ping": 17}')
    [clock] = [event for event in shell.until("clock") if event["event"] == "clock"]
    assert clock["ping"] == 17
    assert abs(clock["time"] - time.time()) < 60


def test_shell_probe_exits_when_stdin_closes(shell: Shell) -> None:
    shell.until("beat")
    assert shell.process.stdin is not None
    shell.process.stdin.close()
    assert shell.process.wait(30) != 0, "ended by the script's reader of stdin"


@pytest.mark.parametrize("known", [recorded.FIELDS, ("index", "name", "memory.total")])
def test_old_driver_is_queried_field_by_field(top: Path, tmp_path: Path, known: tuple[str, ...]) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    values = dict(zip(recorded.FIELDS, recorded.GPUS["H100"][0].splitlines()[0].split(", "), strict=True))
    answers = "\n".join(f'{field}) line="$line, {value}" ;;' for field, value in values.items() if field in known)
    (tools / "nvidia-smi").write_text(
        "#!/bin/sh\ncase $1 in\n--query-gpu=*) line=\n"
        "for field in $(echo \"${1#*=}\" | tr , ' '); do\n case $field in\n"
        f'{answers}\n*) echo "$field is not a valid field"; exit 2 ;;\nesac; done; echo "${{line#, }}" ;;\n'
        f"--query-compute-apps=*) echo '{values['uuid']}, {os.getpid()}, python' ;;\n"
        "*) echo '| Driver Version: 550.54.15   CUDA Version: 12.4 |' ;;\nesac\n"
    )
    (tools / "nvidia-smi").chmod(0o755)
    shell = Shell("sh", top, path=f"{tools}:{os.environ['PATH']}")
    try:
        _, facts, beat = shell.until("beat")
    finally:
        shell.close()
    [gpu] = beat["accelerators"]
    assert (gpu["kind"], gpu["memory_total"]) == ("NVIDIA H100 80GB HBM3", 81559 << 20)
    assert facts["cuda"] == "12.4"
    supported = known == recorded.FIELDS
    assert facts["driver"] == ("550.54.15" if supported else "")
    assert gpu["utilization"] == (0.98 if supported else None)
    assert gpu["pids"] == ([os.getpid()] if supported else [])
    assert facts["users"][0]["pid"] == os.getpid()


def test_script_is_posix() -> None:
    script = resources.files("midstream_host.machine").joinpath("probe.sh").read_text()
    for shell in SHELLS:
        argv = [shell, "sh", "-n"] if shell == "busybox" else [shell, "-n"]
        done = subprocess.run(argv, input=script, text=True, capture_output=True)
        assert (done.returncode, done.stderr) == (0, ""), shell
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", "--shell=sh", "-"], input=script, text=True, check=True)


LOOK = (
    "@look 1700000000.25\n@stat\n|cpu  100 0 100 700 100 0 0 0\n@memory\n|MemTotal: 1000 kB\n|MemFree: 100 kB\n@disk\n"
    "|Filesystem 1024-blocks Used Available Capacity Mounted\n|/dev/sda1 1000 400 600 40% /a disk\n@gpus index,name\n"
    "|0, NVIDIA L4\n@apps\n@name\n|box\n@kernel\n|Linux 6.1.0-21-amd64 x86_64\n@cpus\n|8\n@libc\n|glibc 2.35\n@end\n"
)


def test_rates_need_two_polls() -> None:
    counters = (
        "@net\n|  eth0: {net} 0 0 0 0 0 0 0 {net} 0 0\n|docker0: 9 0 0 0 0 0 0 0 9 0 0\n@interfaces\n|eth0\n"
        "@rdma\n|/sys/m/ports/1 {net} {net}\n@diskstats\n|8 0 sda 1 0 {disk} 0 1 0 {disk} 0\n@blocks\n|sda\n@end\n"
    )
    first = LOOK.replace("@end\n", counters.format(net=1000, disk=10))
    second = LOOK.replace("@end\n", counters.format(net=2000, disk=20)).replace("00.25", "05.25")
    set_back = LOOK.replace("@end\n", counters.format(net=3000, disk=30)).replace("00.25", "01.25")
    before, after, last = (event for event in events(first + second + set_back) if event["event"] == "beat")
    assert {before[name] for name in rates.NAMES} == {None}
    assert [after[name] for name in rates.NAMES] == [200, 200, 800, 800, 1024, 1024]
    assert {last[name] for name in rates.NAMES} == {None}, "its clock was set back"


def test_cpu_usage_needs_two_polls() -> None:
    second = LOOK.replace("cpu  100 0 100 700 100", "cpu  150 0 150 750 150").replace("00.25", "05.25")
    found = [event for event in events(LOOK + second) if event["event"] == "beat"]
    assert [event["cpu_used"] for event in found] == [0.0, 0.5]
    assert [event["time"] for event in found] == [1700000000.25, 1700000005.25]


def test_events_fit_the_snapshot_store() -> None:
    store = SnapshotStore({"box": "ssh"})
    for event in events(LOOK):
        store.take("box", event)
    [host] = store.snapshot().hosts
    assert host.link == LIVE
    assert host.machine is not None
    assert (host.machine.hostname, host.machine.glibc, host.machine.python) == ("box", "2.35", "")
    assert host.machine.platform == "Linux-6.1 x86_64 glibc2.35"
    assert [item.kind for item in host.machine.accelerators] == ["NVIDIA L4"]


def test_clocks_without_fractions_are_read() -> None:
    found = events(LOOK.replace("@disk", "@clock 3 1700000001.%N\n@disk").replace("1700000000.25", "1700000000.N"))
    assert found[0] == {"event": "clock", "ping": 3, "time": 1700000001.0}
    assert [event["event"] for event in found] == ["clock", "hello", "inventory", "beat"]
    assert found[-1]["disk_free"] == 600 << 10


def test_fleet_file_devices_override_found_ones() -> None:
    assert [event["accelerators"] for event in events(LOOK, devices=2) if event["event"] == "beat"] == [
        [{"index": 0, "kind": "cpu"}, {"index": 1, "kind": "cpu"}]
    ]


@seed(7)
@settings(max_examples=150, deadline=None, database=None)
@given(data=st.data())
def test_parser_never_raises_on_any_text(data: st.DataObject) -> None:
    text = (LOOK * 2).encode()
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(text)))
        end = min(len(text), at + data.draw(st.integers(0, 60)))
        text = text[:at] + data.draw(st.binary(max_size=12)) + text[end:]
    store = SnapshotStore({"box": "ssh"})
    for event in events(text):
        json.dumps(event, allow_nan=False)
        if event["event"] != "clock":
            store.take("box", event)
    store.snapshot()


def test_parser_bounds_what_it_keeps() -> None:
    """With any sections and any number of lines, the parser keeps a bounded text."""
    reader = ShellProbeParser()
    list(reader.parse(b"@look 1700000000.5\n"))
    for number in range(200):
        list(reader.parse(b"@made-up-%d\n" % number))
        list(reader.parse(b"|" + b"x" * 8000))
    for name in sorted(SECTIONS):
        list(reader.parse(b"@%s words\n" % name.encode()))
        for _ in range(200):
            list(reader.parse(b"|" + b"x" * 8000))
    sizes = {name: sum(map(len, lines)) for name, (_, lines) in reader._sections.items()}
    assert set(sizes) <= SECTIONS
    assert sum(sizes.values()) <= POLL_SIZE_LIMIT
