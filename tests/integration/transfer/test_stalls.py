"""Copies between two SSH hosts that stall for longer than their programs wait."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from midstream.errors import ConnectionLostError
from midstream.hosts.ssh.ssh_host import SshHost
from midstream.transfer.copy_settings import CopySettings
from midstream.transfer.copy_tree import copy_tree
from midstream.transfer.endpoint import Endpoint
from midstream.transfer.report import Progress
from midstream_host.copy.stdin_lines import IDLE_TIMEOUT
from simulators.link import Link, through
from simulators.sshd import Lab, SshServer
from support.checkpoints.trees import assert_same_tree, random_contents, write_tree

MIB = 1 << 20
STALL = IDLE_TIMEOUT + 10.0  # seconds: both ends have timed out by then


def programs(*servers: SshServer) -> list[int]:
    """Return the pids of our programs on these hosts."""
    found, unread = [], [server.process.pid for server in servers]
    while unread:
        listed = subprocess.run(["ps", "-o", "pid=,comm=", "--ppid", str(unread.pop())], capture_output=True, text=True)
        for line in listed.stdout.splitlines():
            pid, name = line.split()[:2]
            unread.append(int(pid))
            if not name.startswith("sshd"):
                found.append(int(pid))
    return found


@pytest.mark.slow  # the stall is longer than IDLE_TIMEOUT
@pytest.mark.parametrize("route", ["relay", "direct"])
@pytest.mark.parametrize("what", ["links", "programs"])
def test_stalled_copy_resumes_with_received_chunks(lab: Lab, tmp_path: Path, route: str, what: str) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    servers = [lab.host("near"), lab.host("far")]
    links = [Link(server.port) for server in servers]
    near, far = (
        SshHost(server.name, through(server, link.port).config) for server, link in zip(servers, links, strict=True)
    )
    near.connect()
    far.connect()
    source, target = tmp_path / "source", tmp_path / "target"
    sizes = [6 * MIB] * 4
    write_tree(source, random_contents(draw, sizes))
    settings = CopySettings(route=route, bandwidth_limit=2e6)
    stopped: list[int] = []
    over = threading.Event()

    def stall() -> None:
        if what == "programs":
            stopped.extend(programs(*servers))
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
        for link in links:
            link.freeze()
        time.sleep(STALL)
        for link in links:
            link.thaw()
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
        over.set()

    began = threading.Event()

    def watch(progress: Progress) -> None:
        if progress.bytes_done > sum(sizes) // 3 and not began.is_set():
            began.set()
            threading.Thread(target=stall, daemon=True).start()

    try:
        with pytest.raises(ConnectionLostError):
            copy_tree(Endpoint(near, str(source)), Endpoint(far, str(target)), settings=settings, progress=watch)
        assert over.wait(2 * STALL)
        near.connect()
        far.connect()
        report = copy_tree(Endpoint(near, str(source)), Endpoint(far, str(target)), settings=CopySettings(route=route))
        assert_same_tree(target, source)
        assert report.bytes_sent < sum(sizes), "received chunks are not sent again"
    finally:
        for host in (near, far):
            host.close()
        for link in links:
            link.close()
