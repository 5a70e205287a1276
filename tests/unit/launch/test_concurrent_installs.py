"""Installations at the same time, for hosts that share a root, and killed ones. The order of events is forced."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import signal
import sys
import tarfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from midstream.errors import HostError
from midstream.fleet.fleet import LocalHostConfig
from midstream.hosts.local_host import LocalHost
from midstream.install import interpreter, wheelhouse
from midstream.install.errors import LaunchError
from midstream.install.interpreter import bring_python, python_build, python_tarball
from midstream.install.wheelhouse import collect_wheels, send_wheels
from support.wheels import write_wheel

TIMEOUT = 60.0  # seconds
DAY = 86400.0  # seconds
# Program in the place of tar: the first one waits, once it has unpacked, the second one before it does.
TAR = """#!/bin/sh
wait_for() {{ while [ ! -e "{room}/$1" ]; do sleep 0.02; done; }}
if mkdir {room}/first 2>/dev/null; then
    echo $PPID > {room}/shell
    {tar} "$@" && touch {room}/unpacked && wait_for first-may-end
else
    touch {room}/second
    wait_for second-may-begin
    {tar} "$@"
fi
"""
# Program in the place of rm: the first one waits before it removes anything.
RM = """#!/bin/sh
if mkdir {room}/removing 2>/dev/null; then
    while [ ! -e {room}/rm-may-begin ]; do sleep 0.02; done
fi
exec {rm} "$@"
"""
# Program in the place of pip: it finds out whether another one runs at the same time.
PIP = """
import os, shutil, sys, time
room, source, target = sys.argv[1], sys.argv[2], sys.argv[sys.argv.index("--dest") + 1]
if "--version" in sys.argv: sys.exit()
try:
    os.mkdir(room + "/running")
except FileExistsError:
    open(room + "/overlap", "w").close()
end = time.monotonic() + 0.5
while time.monotonic() < end and not os.path.exists(room + "/overlap"):
    time.sleep(0.01)
for name in os.listdir(source):
    shutil.copy(os.path.join(source, name), target)
"""


@pytest.fixture
def hosts(tmp_path: Path) -> list[LocalHost]:
    config = LocalHostConfig(root=str(tmp_path / "root"))
    found = [LocalHost(name, config) for name in ("a", "b")]
    for host in found:
        host.connect()
    return found


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the directory of the files that the two tars write and wait for."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "tar").write_text(TAR.format(tar=shutil.which("tar"), room=tools))
    (tools / "tar").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MIDSTREAM_CACHE", str(tmp_path / "cache"))
    return tools


def wait_for(file: Path) -> None:
    for _ in range(round(TIMEOUT / 0.02)):
        if file.exists():
            return
        threading.Event().wait(0.02)
    raise AssertionError(f"{file} does not appear")


@pytest.fixture
def pins(tmp_path: Path) -> dict[str, Any]:
    """A mirror with a build that is a script."""
    file = tmp_path / "mirror" / "20260101" / "cpython.tar.gz"
    file.parent.mkdir(parents=True)
    with tarfile.open(file, "w:gz") as archive:
        member, text = tarfile.TarInfo("python/bin/python3"), b"#!/bin/sh\nexit 0\n"
        member.size, member.mode = len(text), 0o755
        archive.addfile(member, io.BytesIO(text))
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    build = {"file": "20260101/cpython.tar.gz", "sha256": digest}
    return {"version": "9.9.9", "mirror": file.parents[1].as_uri(), "builds": {os.uname().machine: build}}


def test_hosts_that_share_a_root_install_a_python(hosts: list[LocalHost], room: Path, pins: dict[str, Any]) -> None:
    with ThreadPoolExecutor() as pool:
        first = pool.submit(bring_python, hosts[0], {}, None, pins)
        try:
            wait_for(room / "unpacked")
            (room / "second-may-begin").touch()
            second = bring_python(hosts[1], {}, None, pins)
        finally:
            (room / "first-may-end").touch()
        assert first.result(TIMEOUT) == second
    assert hosts[0].run([second]).returncode == 0
    assert len(list(Path(second).parents[2].iterdir())) == 1, "nothing else is left"


def test_complete_python_is_not_removed_as_a_leftover(
    hosts: list[LocalHost], room: Path, pins: dict[str, Any], tmp_path: Path
) -> None:
    """The second host has it while the first one is about to remove what was there before."""
    (room / "rm").write_text(RM.format(rm=shutil.which("rm"), room=room))
    (room / "rm").chmod(0o755)
    for name in ("first-may-end", "second-may-begin"):
        (room / name).touch()
    directory = tmp_path / "root" / "pythons" / python_build(os.uname().machine, pins).name
    (directory / "bin").mkdir(parents=True)
    (directory / "leftover").touch()
    with ThreadPoolExecutor() as pool:
        first = pool.submit(bring_python, hosts[0], {}, None, pins)
        try:
            wait_for(room / "removing")
            second = bring_python(hosts[1], {}, None, pins)
            installed = directory.stat().st_ino
        finally:
            (room / "rm-may-begin").touch()
        assert first.result(TIMEOUT) == second
    assert directory.stat().st_ino == installed, "the second host uses it"
    assert sorted(path.name for path in directory.iterdir()) == [".complete", "bin"]
    assert list(directory.parent.iterdir()) == [directory], "nothing else is left"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("what", ["pythons", "wheels"])
def test_signalled_installation_leaves_nothing(
    hosts: list[LocalHost], room: Path, pins: dict[str, Any], tmp_path: Path, what: str, number: signal.Signals
) -> None:
    write_wheel(tmp_path / "index")
    wheels = list((tmp_path / "index").glob("*.whl"))
    with ThreadPoolExecutor() as pool:
        if what == "pythons":
            found = pool.submit(bring_python, hosts[0], {}, None, pins)
        else:
            found = pool.submit(send_wheels, hosts[0], "lock", wheels)
        try:
            wait_for(room / "unpacked")
            os.kill(int((room / "shell").read_text()), number)
        finally:
            (room / "first-may-end").touch()
        with pytest.raises((LaunchError, HostError)):
            found.result(TIMEOUT)
    assert list((tmp_path / "root" / what).iterdir()) == []


def test_leftovers_of_killed_installations_are_removed(
    hosts: list[LocalHost], room: Path, pins: dict[str, Any], tmp_path: Path
) -> None:
    (room / "first-may-end").touch()
    pythons = tmp_path / "root" / "pythons"

    def leave(name: str, age: float) -> Path:
        made = pythons / name
        (made / "bin").mkdir(parents=True)
        os.utime(made, (time.time() - age, time.time() - age))
        return made

    old, running = leave("midstream-3.0.0-0.part-11", 2 * DAY), leave("midstream-9.9.9-0.part-22", DAY / 2)
    python = Path(bring_python(hosts[0], {}, None, pins))
    assert (old.exists(), running.exists()) == (False, True)
    older = leave("midstream-3.0.0-0.part", 9 * DAY)
    assert Path(bring_python(hosts[0], {}, None, pins)) == python, "it is there already"
    assert (older.exists(), python.exists()) == (False, True)


def test_python_is_downloaded_for_two_hosts_at_once(
    room: Path, pins: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    build, real, both = (
        python_build(os.uname().machine, pins),
        shutil.copyfileobj,
        threading.Barrier(2, timeout=TIMEOUT),
    )

    def copy(source: Any, target: Any) -> None:
        both.wait()  # both have opened their files
        real(source, target)

    monkeypatch.setattr(interpreter.shutil, "copyfileobj", copy)
    with ThreadPoolExecutor() as pool:
        found = list(pool.map(lambda _: python_tarball(build), range(2)))
    assert hashlib.sha256(found[0].read_bytes()).hexdigest() == build.sha256
    assert list(found[0].parent.iterdir()) == [found[1]]


@pytest.mark.usefixtures("room")
def test_part_of_a_killed_download_is_removed_later(pins: dict[str, Any]) -> None:
    build = python_build(os.uname().machine, pins)
    path = python_tarball(build)
    abandoned, running = (path.with_name(f"{path.name}.part-{name}") for name in ("abandoned", "running"))
    for part in (abandoned, running):
        part.write_bytes(b"x")
    os.utime(abandoned, (1e9, 1e9))
    path.unlink()
    assert python_tarball(build) == path
    assert sorted(path.parent.iterdir()) == [path, running]


def test_hosts_that_share_a_root_receive_wheels(hosts: list[LocalHost], room: Path, tmp_path: Path) -> None:
    write_wheel(tmp_path / "index")
    wheels = list((tmp_path / "index").glob("*.whl"))
    complete = {".complete", *(path.name for path in wheels)}
    with ThreadPoolExecutor() as pool:
        first = pool.submit(send_wheels, hosts[0], "lock", wheels)
        try:
            wait_for(room / "unpacked")
            second = pool.submit(send_wheels, hosts[1], "lock", wheels)
            wait_for(room / "second")
            (room / "first-may-end").touch()
            directory = Path(first.result(TIMEOUT))
            assert {path.name for path in directory.iterdir()} == complete
        finally:
            (room / "first-may-end").touch()
            (room / "second-may-begin").touch()
        assert second.result(TIMEOUT) == str(directory)
    assert {path.name for path in directory.iterdir()} == complete
    assert list(directory.parent.iterdir()) == [directory], "nothing else is left"


def test_wheels_are_collected_by_one_pip_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index, target = tmp_path / "index", tmp_path / "wheelhouse"
    lock = write_wheel(index)
    monkeypatch.setattr(wheelhouse, "_pip", lambda: [sys.executable, "-c", PIP, str(tmp_path), str(index)])
    with ThreadPoolExecutor() as pool:
        found = list(
            pool.map(lambda _: collect_wheels(lock, target, version="3.11", machine="x86_64", glibc=(2, 28)), range(2))
        )
    assert [path.name for path in found[0]] == [path.name for path in index.glob("*.whl")]
    assert found[0] == found[1]
    assert not (tmp_path / "overlap").exists()
