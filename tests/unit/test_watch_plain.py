"""The probe of a host without Python: the shell's text, and what is read from it."""

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

from midstream.watch.shell_probe import LOOK_LIMIT, SECTIONS, PlainReader, command
from midstream.watch.snapshot import LIVE
from midstream.watch.snapshot_store import Store
from unit import recordings

GIB = 1 << 30


def _gone() -> int:
    """A process that was."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


GONE = _gone()
SHELLS = [shell for shell in ("dash", "bash", "busybox") if shutil.which(shell)]


def events(text: str | bytes, devices: int | None = None) -> list[dict[str, Any]]:
    reader = PlainReader(devices)
    data = text.encode() if isinstance(text, str) else text
    return [dict(event) for line in data.splitlines(keepends=True) for event in reader.take(line)]


@pytest.fixture
def top(tmp_path: Path) -> Path:
    """A machine's /proc, /sys and /etc, with four TPU chips that two processes hold, and a port of InfiniBand."""
    for slot in range(4):
        chip = tmp_path / "sys/bus/pci/devices" / f"0000:00:0{slot}.0"
        chip.mkdir(parents=True)
        (chip / "vendor").write_text("0x1ae0\n")
        (chip / "device").write_text("0x0063\n")
    other = tmp_path / "sys/bus/pci/devices/0000:01:00.0"
    other.mkdir()
    (other / "vendor").write_text("0x8086\n")
    for pid, path in ((os.getpid(), "/dev/vfio/0"), (78, "/dev/vfio/vfio"), (GONE, "/dev/accel1")):
        (tmp_path / "proc" / str(pid) / "fd").mkdir(parents=True)
        os.symlink(path, tmp_path / "proc" / str(pid) / "fd" / "3")
    port = tmp_path / "sys/class/infiniband/mlx5_0/ports/1"
    port.mkdir(parents=True)
    for name, text in (("state", "4: ACTIVE\n"), ("rate", "200 Gb/sec (4X HDR)\n"), ("link_layer", "InfiniBand\n")):
        (port / name).write_text(text)
    (tmp_path / "proc/stat").write_text("cpu  100 0 100 700 100 0 0 0 0 0\ncpu0 1 2 3\n")
    (tmp_path / "proc/meminfo").write_text("MemTotal: 1000 kB\nMemFree: 10 kB\nMemAvailable: 400 kB\nCached: 5 kB\n")
    (tmp_path / "proc/cpuinfo").write_text("processor: 0\nmodel name\t: A  CPU\nmodel name\t: A  CPU\n")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/os-release").write_text('NAME=x\nPRETTY_NAME="Some Linux 1.2"\n')
    return tmp_path


class Shell:
    """The probe in a shell, on a machine of files."""

    def __init__(self, shell: str, top: Path, root: str = "/nowhere/at/all", path: str | None = None):
        words = command(root, 5.0)
        words = [*([shell, "sh"] if shell == "busybox" else [shell]), *words[1:-1], str(top)]
        env = {**os.environ, **({"PATH": path} if path else {})}
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
        self.reader = PlainReader()

    def until(self, event: str) -> list[dict[str, Any]]:
        """Events up to the first of this kind."""
        assert self.process.stdout is not None
        found: list[dict[str, Any]] = []
        for line in self.process.stdout:
            for told in self.reader.take(line):
                found.append(dict(told))
            if any(told["event"] == event for told in found):
                return found
        raise AssertionError(f"no {event} in {found}")

    def say(self, line: str) -> None:
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


def test_a_machine_is_told_whole(shell: Shell):
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
    assert [user["pid"] for user in facts["users"]] == [os.getpid()], "the other is gone"
    assert (beat["memory_total"], beat["memory_used"]) == (1000 << 10, 600 << 10)
    assert beat["disk_total"] > beat["disk_free"] > 0
    assert [(each["kind"], each["memory_total"]) for each in beat["accelerators"]] == [("TPU v5e", 16 * GIB)] * 4
    assert beat["accelerators"][0]["holders"] == sorted([os.getpid(), GONE])
    assert abs(beat["time"] - time.time()) < 60


def test_pings_are_answered_while_it_looks(shell: Shell):
    shell.say('{"pace": 3.0}')
    shell.say('{"ping": 17}')
    [clock] = [event for event in shell.until("clock") if event["event"] == "clock"]
    assert clock["ping"] == 17
    assert abs(clock["time"] - time.time()) < 60


def test_it_ends_when_stdin_closes(shell: Shell):
    shell.until("beat")
    assert shell.process.stdin is not None
    shell.process.stdin.close()
    assert shell.process.wait(30) != 0, "ended by its listener"


@pytest.mark.parametrize("known", [recordings.FIELDS, ("index", "name", "memory.total")])
def test_gpus_are_asked_field_by_field_where_the_driver_is_old(top: Path, tmp_path: Path, known: tuple[str, ...]):
    tools = tmp_path / "bin"
    tools.mkdir()
    values = dict(zip(recordings.FIELDS, recordings.GPUS["H100"][0].splitlines()[0].split(", "), strict=True))
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
    whole = known == recordings.FIELDS
    assert facts["driver"] == ("550.54.15" if whole else "")
    assert gpu["utilization"] == (0.98 if whole else None)
    assert gpu["holders"] == ([os.getpid()] if whole else [])
    assert facts["users"][0]["pid"] == os.getpid()


def test_the_script_is_posix(tmp_path: Path):
    script = resources.files("midstream.remote.machine").joinpath("probe.sh").read_text()
    for shell in SHELLS:
        words = [shell, "sh", "-n"] if shell == "busybox" else [shell, "-n"]
        done = subprocess.run(words, input=script, text=True, capture_output=True)
        assert (done.returncode, done.stderr) == (0, ""), shell
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", "--shell=sh", "-"], input=script, text=True, check=True)


LOOK = (
    "@look 1700000000.25\n@stat\n|cpu  100 0 100 700 100 0 0 0\n@memory\n|MemTotal: 1000 kB\n|MemFree: 100 kB\n@disk\n"
    "|Filesystem 1024-blocks Used Available Capacity Mounted\n|/dev/sda1 1000 400 600 40% /a disk\n@gpus index,name\n"
    "|0, NVIDIA L4\n@apps\n@name\n|box\n@kernel\n|Linux 6.1.0-21-amd64 x86_64\n@cpus\n|8\n@libc\n|glibc 2.35\n@end\n"
)


def test_a_second_look_tells_how_busy_it_was():
    second = LOOK.replace("cpu  100 0 100 700 100", "cpu  150 0 150 750 150").replace("00.25", "05.25")
    found = [event for event in events(LOOK + second) if event["event"] == "beat"]
    assert [event["cpu_used"] for event in found] == [0.0, 0.5]
    assert [event["time"] for event in found] == [1700000000.25, 1700000005.25]


def test_what_comes_fits_into_the_store():
    store = Store({"box": "ssh"})
    for event in events(LOOK):
        store.take("box", event)
    [host] = store.snapshot().hosts
    assert host.link == LIVE
    assert host.machine is not None
    assert (host.machine.hostname, host.machine.glibc, host.machine.python) == ("box", "2.35", "")
    assert host.machine.platform == "Linux-6.1 x86_64 glibc2.35"
    assert [item.kind for item in host.machine.accelerators] == ["NVIDIA L4"]


def test_clocks_without_fractions_and_answers_in_between_are_read():
    found = events(LOOK.replace("@disk", "@clock 3 1700000001.%N\n@disk").replace("1700000000.25", "1700000000.N"))
    assert found[0] == {"event": "clock", "ping": 3, "time": 1700000001.0}
    assert [event["event"] for event in found] == ["clock", "hello", "inventory", "beat"]
    assert found[-1]["disk_free"] == 600 << 10


def test_the_fleet_files_devices_stand_above_what_is_there():
    assert [event["accelerators"] for event in events(LOOK, devices=2) if event["event"] == "beat"] == [
        [{"index": 0, "kind": "cpu"}, {"index": 1, "kind": "cpu"}]
    ]


@seed(7)
@settings(max_examples=150, deadline=None, database=None)
@given(data=st.data())
def test_no_text_makes_the_reader_raise(data: st.DataObject):
    text = (LOOK * 2).encode()
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(text)))
        end = min(len(text), at + data.draw(st.integers(0, 60)))
        text = text[:at] + data.draw(st.binary(max_size=12)) + text[end:]
    store = Store({"box": "ssh"})
    for event in events(text):
        json.dumps(event, allow_nan=False)
        if event["event"] != "clock":
            store.take("box", event)
    store.snapshot()


def test_a_text_without_end_is_not_kept():
    """Sections of any name, lines of any number: what is kept of a look is bounded."""
    reader = PlainReader()
    list(reader.take(b"@look 1700000000.5\n"))
    for number in range(200):
        list(reader.take(b"@made-up-%d\n" % number))
        list(reader.take(b"|" + b"x" * 8000))
    for name in sorted(SECTIONS):
        list(reader.take(b"@%s words\n" % name.encode()))
        for _ in range(200):
            list(reader.take(b"|" + b"x" * 8000))
    kept = {name: sum(map(len, lines)) for name, (_, lines) in reader._sections.items()}
    assert set(kept) <= SECTIONS
    assert sum(kept.values()) <= LOOK_LIMIT
