"""Copy routes between real SSH hosts: direct, relayed, resumed."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from midstream.errors import ConnectionLostError, HostError
from midstream.fleet.fleet import LocalHostConfig
from midstream.hosts.host_pool import open_host
from midstream.hosts.local_host import LocalHost
from midstream.hosts.rpc.remote_call import start_program
from midstream.hosts.rpc.remote_program import reports
from midstream.hosts.ssh.ssh_host import SshHost
from midstream.transfer import stream_transport
from midstream.transfer.copy_settings import CopySettings
from midstream.transfer.copy_tree import copy_contents, copy_tree
from midstream.transfer.endpoint import Endpoint
from midstream.transfer.errors import TransferError
from midstream.transfer.link import Link as CopyLink
from midstream.transfer.link import probe, wait_listening
from midstream.transfer.report import Progress
from midstream.transfer.tls_certificates import make_peers
from midstream.transfer.tree_contents import read_contents
from midstream_host.copy import staging, tls_peer
from midstream_host.object_files import INCOMING
from simulators.link import Link, through
from simulators.sshd import Lab, SshServer
from support.checkpoints.trees import assert_same_tree, cell, random_contents, write_tree

MIB = 1 << 20
DIRECT = CopySettings(route="direct", streams=2)
OVER_SSH = CopySettings(route="relay", streams=2)
pytestmark = pytest.mark.system


def connected(server: SshServer) -> SshHost:
    host = open_host(server.name, server.config)
    assert isinstance(host, SshHost)
    host.connect()
    return host


@pytest.fixture
def pair(lab: Lab) -> Iterator[tuple[SshHost, SshHost]]:
    hosts = connected(lab.host("one")), connected(lab.host("two"))
    yield hosts
    for host in hosts:
        host.close()


Pair = tuple[SshHost, SshHost]


def test_listener_that_reports_nonsense_is_closed(tmp_path: Path) -> None:
    here = LocalHost("here", LocalHostConfig(root=str(tmp_path)))
    process = here.open(["sh", "-c", """echo '{"event": "nonsense"}'; exec cat"""])
    with pytest.raises(TransferError, match="wrote a line that is no report"):
        wait_listening(process, here)
    assert process.stdin.closed
    assert process.wait(60) == 0


@pytest.mark.parametrize("listener", ["source", "target"])
def test_direct_route_with_either_listener_shows_no_key(
    pair: Pair, tmp_path: Path, listener: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    write_tree(source, random_contents(random.Random(1), [20 * MIB, MIB, 0, 5]))
    found = probe(*pair, DIRECT)
    assert found.kind == "direct"
    monkeypatch.setattr(
        "midstream.transfer.copy_tree.probe", lambda *_: CopyLink("direct", found.seconds, listener, found.address)
    )
    command_lines: set[bytes] = set()

    def look(_: Progress) -> None:
        for file in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                command_lines.add(file.read_bytes())
            except OSError:  # it has ended
                continue

    report = copy_tree(Endpoint(pair[0], str(source)), Endpoint(pair[1], str(target)), settings=DIRECT, progress=look)
    assert_same_tree(target, source)
    called = {"target": "one connects to two", "source": "two connects to one"}[listener]
    assert called in report.routes[0]
    assert any(b"python" in line for line in command_lines)
    assert not any(b"PRIVATE KEY" in line or b"CERTIFICATE" in line for line in command_lines)


def test_tls_listener_accepts_expected_peer_alone(pair: Pair) -> None:
    ends, strange = make_peers(pair[1], pair[0]), make_peers(pair[1], pair[0])
    process = start_program(pair[1], tls_peer.answer)(peer=ends.listener(None))
    messages = reports(process)
    port = next(messages)["port"]
    with socket.create_connection(("127.0.0.1", port), 5) as scanner:
        scanner.sendall(b"GET / HTTP/1.0\r\n\r\n")
    # A dialer with a self-made certificate, and one that expects another host than the one that answers.
    for wrong in (
        {**strange.dialer(["127.0.0.1"], port), "trusted": ends.listens.certificate},
        {**ends.dialer(["127.0.0.1"], port), "trusted": strange.listens.certificate},
    ):
        assert pair[0].call(tls_peer.probe)(peer=wrong)["address"] is None
    found = pair[0].call(tls_peer.probe)(peer=ends.dialer(["127.0.0.1"], port))
    assert (found["address"], found["why"]) == ("127.0.0.1", "")
    assert next(messages)["event"] == "done"
    process.close()


def test_closed_ports_lead_to_relay_with_reason(pair: Pair, tmp_path: Path) -> None:
    write_tree(tmp_path / "source", random_contents(random.Random(2), [17 * MIB, 5]))
    with socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True) as taken:
        port = taken.getsockname()[1]
        closed = CopySettings(ports=(port, port))
        link = probe(*pair, closed)
        assert link.kind == "relay"
        assert "not direct: " in link.text("one", "two")
        report = copy_tree(
            Endpoint(pair[0], str(tmp_path / "source")), Endpoint(pair[1], str(tmp_path / "target")), settings=closed
        )
        with pytest.raises(HostError, match="no direct route between one and two"):
            probe(*pair, CopySettings(route="direct", ports=(port, port)))
    assert "relayed" in report.routes[0]
    assert_same_tree(tmp_path / "target", tmp_path / "source")


def test_copy_without_ssh_program_uses_paramiko(pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_transport, "_ssh_program", lambda: None)
    write_tree(tmp_path / "source", random_contents(random.Random(3), [20 * MIB, 5]))
    here = LocalHost("here", LocalHostConfig(root=str(tmp_path / "root")))
    assert probe(here, pair[0], CopySettings(route="relay")).transport == "paramiko"
    for source, target, place in ((here, pair[0], "there"), (pair[0], here, "back")):
        copy_tree(
            Endpoint(source, str(tmp_path / "source")),
            Endpoint(target, str(tmp_path / place)),
            settings=CopySettings(streams=2, route="relay"),
        )
        assert_same_tree(tmp_path / place, tmp_path / "source")


def test_cut_copy_resumes_without_resending_chunks(lab: Lab, tmp_path: Path) -> None:
    server = lab.host("far")
    link = Link(server.port)
    far = connected(through(server, link.port))
    here = LocalHost("here", LocalHostConfig(root=str(tmp_path / "root")))
    source, target = tmp_path / "source", tmp_path / "target"
    size = 5 * staging.CHUNK + 12345
    write_tree(source, {cell("one"): random.Random(4).randbytes(size)})
    link.after(3 * staging.CHUNK + MIB, link.cut)
    with pytest.raises(ConnectionLostError):
        copy_tree(Endpoint(here, str(source)), Endpoint(far, str(target)), settings=OVER_SSH)
    assert not (target / cell("one")).exists()
    far.connect()
    before = link.bytes_there
    report = copy_tree(Endpoint(here, str(source)), Endpoint(far, str(target)), settings=OVER_SSH)
    went = link.bytes_there - before
    assert_same_tree(target, source)
    assert report.bytes_sent <= size - staging.CHUNK, "two streams had at most two unfinished chunks"
    assert went < report.bytes_sent * 1.02 + MIB, "the report counts the bytes of the link"
    link.close()
    far.close()


def test_objects_of_other_trees_on_target_are_linked(pair: Pair, tmp_path: Path) -> None:
    contents = random_contents(random.Random(5), [MIB, 2000, 3000])
    name, *others = contents
    checkpoints = Path(pair[1].root) / "runs" / "other" / "checkpoints"
    write_tree(checkpoints / "step-1-a001", {"under/another name": contents[name], "own": b"x"})
    write_tree(checkpoints / "step-2-a001", {"damaged": contents[others[0]]})
    damaged = checkpoints / "step-2-a001" / "damaged"
    damaged.write_bytes(b"?" + damaged.read_bytes()[1:])
    source, target = tmp_path / "source", Path(pair[1].root) / "data" / "abc"
    write_tree(source, contents)
    report = copy_tree(Endpoint(pair[0], str(source)), Endpoint(pair[1], str(target)))
    assert report.linked == (name,)
    assert report.bytes_sent == sum(len(contents[other]) for other in others), "the damaged object is sent"
    assert_same_tree(target, source)
    assert (target / name).stat().st_ino == (checkpoints / "step-1-a001" / "under/another name").stat().st_ino


def test_lost_operator_leaves_no_program_on_direct_route(pair: Pair, tmp_path: Path) -> None:
    """Listener and dialer end with the SSH connections that started them."""
    write_tree(tmp_path / "source", random_contents(random.Random(6), [40 * MIB]))
    slow = CopySettings(route="direct", streams=2, bandwidth_limit=5e6)
    contents = read_contents(Endpoint(pair[0], str(tmp_path / "source")), "manifest.json")
    reports: list[int] = []

    def cut(progress: Progress) -> None:
        if progress.bytes_done and not reports:
            reports.append(progress.bytes_done)
            for host in pair:
                host.close()

    with pytest.raises(ConnectionLostError):
        copy_contents(contents, Endpoint(pair[1], str(tmp_path / "target")), progress=cut, settings=slow)
    assert reports
    for host in pair:
        host.connect()
    report = copy_tree(Endpoint(pair[0], str(tmp_path / "source")), Endpoint(pair[1], str(tmp_path / "target")))
    assert_same_tree(tmp_path / "target", tmp_path / "source")
    assert report.objects_sent == 1
    assert not (tmp_path / "target" / INCOMING).exists()
