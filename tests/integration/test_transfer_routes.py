"""Ways between hosts, with real SSH servers: direct over TLS, relayed, by either carrier, and what resuming costs."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from midstream.errors import HostError, LostContact
from midstream.fleet.fleet import LocalHost
from midstream.hosts.host_pool import open_host
from midstream.hosts.local_host import LocalMachine
from midstream.hosts.rpc.remote_call import start_program
from midstream.hosts.rpc.remote_program import reports
from midstream.hosts.ssh.ssh_host import SshMachine
from midstream.remote.copy import staging
from midstream.remote.verify import tree
from midstream.transfer import CopySettings, Progress, copy_objects, probe, transport
from midstream.transfer.copy_tree import copy_contents
from midstream.transfer.endpoint import Endpoint
from midstream.transfer.route import Link as Way
from midstream.transfer.route import make_ends
from midstream.transfer.tree_contents import read_contents
from simulators.link import Link, through
from simulators.sshd import Lab, SshServer
from support.trees import assert_same_tree, cell, random_contents, write_tree

MIB = 1 << 20
DIRECT = CopySettings(route="direct", streams=2)
pytestmark = pytest.mark.system


def connected(server: SshServer) -> SshMachine:
    host = open_host(server.name, server.config)
    assert isinstance(host, SshMachine)
    host.connect()
    return host


@pytest.fixture
def pair(lab: Lab) -> Iterator[tuple[SshMachine, SshMachine]]:
    hosts = connected(lab.host("one")), connected(lab.host("two"))
    yield hosts
    for host in hosts:
        host.close()


Pair = tuple[SshMachine, SshMachine]


@pytest.mark.parametrize("listener", ["source", "target"])
def test_bytes_go_directly_whoever_is_called_and_no_key_is_seen(
    pair: Pair, tmp_path: Path, listener: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    write_tree(source, random_contents(random.Random(1), [20 * MIB, MIB, 0, 5]))
    found = probe(*pair, DIRECT)
    assert found.kind == "direct"
    monkeypatch.setattr(
        "midstream.transfer.copy_tree.probe", lambda *_: Way("direct", found.seconds, listener, found.address)
    )
    command_lines: set[bytes] = set()

    def look(_: Progress) -> None:
        for place in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                command_lines.add(place.read_bytes())
            except OSError:  # it has ended
                continue

    report = copy_objects(pair[0], str(source), pair[1], str(target), settings=DIRECT, progress=look)
    assert_same_tree(target, source)
    called = {"target": "one calls two", "source": "two calls one"}[listener]
    assert called in report.routes[0]
    assert any(b"python" in line for line in command_lines)
    assert not any(b"PRIVATE KEY" in line or b"CERTIFICATE" in line for line in command_lines)


def test_a_stranger_is_hung_up_on_and_the_one_who_is_expected_is_heard(pair: Pair) -> None:
    ends, strange = make_ends(pair[1], pair[0]), make_ends(pair[1], pair[0])
    process = start_program(pair[1], "copy.tls_peer.answer", {"peer": ends.listener(None)})
    said = reports(process)
    port = next(said)["port"]
    with socket.create_connection(("127.0.0.1", port), 5) as scanner:
        scanner.sendall(b"GET / HTTP/1.0\r\n\r\n")
    # A caller with a certificate of its own making, and one that expects another host than the one that answers.
    for wrong in (
        {**strange.dialer(["127.0.0.1"], port), "trusted": ends.listens.certificate},
        {**ends.dialer(["127.0.0.1"], port), "trusted": strange.listens.certificate},
    ):
        assert pair[0].call("copy.tls_peer.probe", peer=wrong)["address"] is None
    found = pair[0].call("copy.tls_peer.probe", peer=ends.dialer(["127.0.0.1"], port))
    assert (found["address"], found["why"]) == ("127.0.0.1", "")
    assert next(said)["event"] == "done"
    process.close()


def test_where_no_port_is_open_the_bytes_are_relayed_and_the_plan_says_why(pair: Pair, tmp_path: Path) -> None:
    write_tree(tmp_path / "source", random_contents(random.Random(2), [17 * MIB, 5]))
    with socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True) as taken:
        port = taken.getsockname()[1]
        closed = CopySettings(ports=(port, port))
        way = probe(*pair, closed)
        assert way.kind == "relay"
        assert "not direct: " in way.text("one", "two")
        report = copy_objects(pair[0], str(tmp_path / "source"), pair[1], str(tmp_path / "target"), settings=closed)
        with pytest.raises(HostError, match="no direct way between one and two"):
            probe(*pair, CopySettings(route="direct", ports=(port, port)))
    assert "relayed" in report.routes[0]
    assert_same_tree(tmp_path / "target", tmp_path / "source")


def test_without_the_ssh_program_further_connections_of_paramiko_carry_the_bytes(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "_ssh_program", lambda: None)
    write_tree(tmp_path / "source", random_contents(random.Random(3), [20 * MIB, 5]))
    here = LocalMachine("here", LocalHost(root=str(tmp_path / "root")))
    assert probe(here, pair[0]).carried_by == "paramiko"
    for source, target, place in ((here, pair[0], "there"), (pair[0], here, "back")):
        copy_objects(source, str(tmp_path / "source"), target, str(tmp_path / place), streams=2)
        assert_same_tree(tmp_path / place, tmp_path / "source")


def test_chunks_that_arrived_before_a_cut_are_not_sent_again(lab: Lab, tmp_path: Path) -> None:
    server = lab.host("far")
    link = Link(server.port)
    far = connected(through(server, link.port))
    here = LocalMachine("here", LocalHost(root=str(tmp_path / "root")))
    source, target = tmp_path / "source", tmp_path / "target"
    size = 5 * staging.CHUNK + 12345
    write_tree(source, {cell("one"): random.Random(4).randbytes(size)})
    link.after(3 * staging.CHUNK + MIB, link.cut)
    with pytest.raises(LostContact):
        copy_objects(here, str(source), far, str(target), streams=2)
    assert not (target / cell("one")).exists()
    far.connect()
    before = link.bytes_there
    report = copy_objects(here, str(source), far, str(target), streams=2)
    went = link.bytes_there - before
    assert_same_tree(target, source)
    assert report.bytes_sent <= size - staging.CHUNK, "two streams had begun at most two chunks of the three"
    assert went < report.bytes_sent * 1.02 + MIB, "what went over the link is what was counted"
    link.close()
    far.close()


def test_what_another_tree_of_the_target_holds_is_linked_and_not_sent(pair: Pair, tmp_path: Path) -> None:
    contents = random_contents(random.Random(5), [MIB, 2000, 3000])
    name, *others = contents
    checkpoints = Path(pair[1].root) / "runs" / "other" / "checkpoints"
    write_tree(checkpoints / "step-1-a001", {"under/another name": contents[name], "own": b"x"})
    write_tree(checkpoints / "step-2-a001", {"damaged": contents[others[0]]})
    damaged = checkpoints / "step-2-a001" / "damaged"
    damaged.write_bytes(b"?" + damaged.read_bytes()[1:])
    source, target = tmp_path / "source", Path(pair[1].root) / "data" / "abc"
    write_tree(source, contents)
    report = copy_objects(pair[0], str(source), pair[1], str(target))
    assert report.linked == (name,)
    assert report.bytes_sent == sum(len(contents[other]) for other in others), "what is damaged there is sent"
    assert_same_tree(target, source)
    assert (target / name).stat().st_ino == (checkpoints / "step-1-a001" / "under/another name").stat().st_ino


def test_an_operator_that_is_killed_leaves_no_program_behind_on_a_direct_way(pair: Pair, tmp_path: Path) -> None:
    """The listener and the caller talk to each other, and yet end with the connections that started them."""
    write_tree(tmp_path / "source", random_contents(random.Random(6), [40 * MIB]))
    slow = CopySettings(route="direct", streams=2, rate_limit=5e6)
    contents = read_contents(Endpoint(pair[0], str(tmp_path / "source")), "manifest.json")
    seen: list[int] = []

    def cut(progress: Progress) -> None:
        if progress.bytes_done and not seen:
            seen.append(progress.bytes_done)
            for host in pair:
                host.close()

    with pytest.raises(LostContact):
        copy_contents(contents, Endpoint(pair[1], str(tmp_path / "target")), progress=cut, settings=slow)
    assert seen
    for host in pair:
        host.connect()
    report = copy_objects(pair[0], str(tmp_path / "source"), pair[1], str(tmp_path / "target"))
    assert_same_tree(tmp_path / "target", tmp_path / "source")
    assert report.objects_sent == 1
    assert not (tmp_path / "target" / tree.INCOMING).exists()
