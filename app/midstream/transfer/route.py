"""Ways between two hosts: what each is good for, and a short probe that finds out which are open.

- *pipe*: both ends are this machine.
- *ssh*: one end is this machine; the SSH connections carry the bytes.
- *direct*: between two SSH hosts over TLS, where one can call the other. The bytes do not touch this machine.
- *bucket*: one end is a bucket, whose client runs on this machine.
- *relay*: between two SSH hosts through this machine, as a stream that is never stored.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from midstream.errors import HostError, LostContact
from midstream.hosts.host import Host, Process
from midstream.hosts.ssh.settings import resolve
from midstream.hosts.ssh.ssh_host import SshMachine
from midstream.remote.copy.requested_items import new_key
from midstream.stores.bucket_host import BucketHost
from midstream.transfer.certificates import Certificate, make_certificate
from midstream.transfer.copy_reports import checked_reports
from midstream.transfer.copy_settings import DIRECT, RELAY, CopySettings, of_hosts, ports_of
from midstream.transfer.endpoint import Endpoint
from midstream.transfer.stream import Events, Stream
from midstream.transfer.transport import start, start_stream, transport

KNOCKS = 3
ENOUGH = 0.050  # seconds that were measured, after which one answer more says nothing new
PROBE = 20.0  # seconds that a probe may take
LATENT = 0.010  # seconds of round trip from which one stream's windows are too small
PER_STREAM = 0.008  # seconds of round trip that one more stream makes up for
MOST = 8
SOURCE, TARGET = "source", "target"


@dataclass(frozen=True)
class Link:
    """The way that bytes take. ``seconds`` is its round trip. ``listener`` (source or target) is called by the other
    end at ``address``, on a direct way. ``why_not``: what speaks against a direct one."""

    kind: str  # pipe, ssh, direct, relay, bucket
    seconds: float = 0.0
    listener: str = ""
    address: str = ""
    carried_by: str = ""
    why_not: str = ""

    def text(self, source: str, target: str) -> str:
        """One line for a plan."""
        milliseconds = f"{self.seconds * 1000:.1f} ms"
        if self.kind == "direct":
            caller, called = (source, target) if self.listener == TARGET else (target, source)
            return f"direct, {source} -> {target} over TLS ({caller} calls {called} at {self.address}, {milliseconds})"
        if self.kind == "relay":
            note = f"; not direct: {self.why_not}" if self.why_not else ""
            return f"relayed, {source} -> this machine -> {target} over SSH ({milliseconds}{note})"
        if self.kind == "bucket":
            if self.listener:  # the client runs on the host at the other end
                return f"{source} -> {target}, directly from the one to the other over HTTPS"
            note = f"; not directly: {self.why_not}" if self.why_not else ""
            how = f" ({milliseconds} to the host{note})" if self.seconds else note
            return f"{source} -> this machine -> {target} over HTTPS{how}"
        if self.kind == "ssh":
            return f"{source} -> {target} over SSH ({milliseconds})"
        return f"{source} -> {target} on this machine"

    @property
    def streams(self) -> int:
        """As many as fill the link: one for every two cores here, because a stream keeps two busy, and more where
        windows wait for the round trip."""
        cores = min(4, max(1, (os.cpu_count() or 1) // 2))
        more = round(self.seconds / PER_STREAM) if self.seconds > LATENT else 0
        return min(MOST, cores + more)


def probe(source: Host, target: Host, settings: CopySettings | None = None) -> Link:
    """Look which way is open. Leaves nothing behind. HostError where only a direct way is wanted, and none is open."""
    settings = settings or of_hosts(source, target)
    for one, other in ((source, target), (target, source)):
        if isinstance(one, BucketHost):
            return _probe_bucket(one, other)
    far = [host for host in (source, target) if isinstance(host, SshMachine)]
    with ThreadPoolExecutor(3) as pool:
        times = [pool.submit(_round_trip, host) for host in far]
        direct = pool.submit(_probe_direct, source, target, settings) if len(far) == 2 else None
        seconds = sum(each.result() for each in times)
        found = direct.result() if direct is not None else None
    if not far:
        return Link("pipe")
    if len(far) == 1:
        return Link("ssh", seconds, carried_by=transport(far[0]))
    assert found is not None
    if found.kind == "direct":
        return found
    if settings.route == DIRECT:
        raise HostError(
            f"no direct way between {source.name} and {target.name}: {found.why_not}",
            "open a port between them and name it (copy_ports: FIRST-LAST), or do without copy_route: direct",
        )
    return Link("relay", seconds, carried_by=transport(target), why_not=found.why_not)


def _probe_bucket(bucket: BucketHost, other: Host) -> Link:
    """On the host at the other end its programs meet over its loopback, as two hosts do over a network."""
    if bucket.via is not None and bucket.via is other:
        return Link("bucket", 0.0, TARGET, "127.0.0.1")
    seconds = _round_trip(other) if isinstance(other, SshMachine) else 0.0
    return Link("bucket", seconds, carried_by=transport(other))


def _round_trip(host: SshMachine) -> float:
    """Seconds, the shortest of a few: an answer of the SSH server itself, no program has to be started."""
    transport = host._transport()
    seconds = []
    for _ in range(KNOCKS):
        began = time.monotonic()
        try:
            transport.global_request("keepalive@openssh.com", wait=True)
        except (OSError, EOFError) as error:
            raise LostContact(f"{host.name}: the connection is gone", "it is made anew at the next try") from error
        seconds.append(time.monotonic() - began)
        if sum(seconds) >= ENOUGH:
            break
    return min(seconds)


def _probe_direct(source: Host, target: Host, settings: CopySettings) -> Link:
    if settings.route == RELAY:
        return Link("relay", why_not="route: relay")
    why = []
    with ThreadPoolExecutor(2) as pool:
        ways = [
            (TARGET, pool.submit(_call, source, target, settings)),
            (SOURCE, pool.submit(_call, target, source, settings)),
        ]
        for listener, way in ways:
            try:
                found = way.result()
            except (HostError, OSError, ValueError) as error:
                why.append(str(error))
                continue
            if found["address"]:
                return Link("direct", found["seconds"], listener, found["address"])
            why.append(f"{listener} cannot be called: {found['why']}")
    return Link("relay", why_not="; ".join(why)[:300])


def _call(caller: Host, called: Host, settings: CopySettings) -> dict[str, Any]:
    """Let one host listen and the other call it."""
    ends = make_ends(called, caller)
    listening = _listening(
        start(called, "copy.tls_peer.answer", {"peer": ends.listener(ports_of(called, settings))}), called
    )
    try:
        addresses = [*listening.report.get("addresses", ()), *_known_as(called)]
        dialer = ends.dialer(list(dict.fromkeys(addresses)), listening.report["port"])
        return caller.call("copy.tls_peer.probe", peer=dialer, timeout=PROBE)
    finally:
        listening.process.close()


def _known_as(host: Host) -> list[str]:
    """The address by which this machine reaches it."""
    return [resolve(host.name, host.config).hostname] if isinstance(host, SshMachine) else []


@dataclass(frozen=True)
class Ends:
    """The two ends of direct connections, with certificates that nobody else has."""

    listens: Certificate
    dials: Certificate

    def listener(self, ports: tuple[int, int] | None) -> dict[str, Any]:
        return {
            "role": "listen",
            "certificate": self.listens.certificate,
            "key": self.listens.key,
            "trusted": self.dials.certificate,
            "ports": list(ports) if ports else None,
        }

    def dialer(self, addresses: list[str], port: int) -> dict[str, Any]:
        return {
            "role": "dial",
            "certificate": self.dials.certificate,
            "key": self.dials.key,
            "trusted": self.listens.certificate,
            "addresses": addresses,
            "port": port,
        }


def make_ends(listens: Host, dials: Host) -> Ends:
    return Ends(make_certificate(listens.name), make_certificate(dials.name))


@dataclass(frozen=True)
class _Listening:
    process: Process
    report: Mapping[str, Any]


def _listening(process: Process, host: Host) -> _Listening:
    for report in checked_reports(process, Endpoint(host, "")):
        if report["event"] == "listening":
            return _Listening(process, report)
        process.close()
        raise HostError(f"{host.name}: {report.get('message', 'it does not listen')}")
    words = process.stderr_text().strip().splitlines()
    process.close()
    raise LostContact(f"{host.name}: it does not listen: {words[-1] if words else 'no message'}")


# -------------------------------------------------------------------------------------------------------- streams


class Route:
    """Opens streams from ``source`` to ``target`` the way of ``link``, for a copy of one ``kind``."""

    def __init__(self, source: Endpoint, target: Endpoint, link: Link, settings: CopySettings, kind: str):
        self.source, self.target, self.link, self._settings, self._kind = source, target, link, settings, kind
        self._ends: Ends | None = None
        if link.kind == "direct" or (link.kind == "bucket" and link.listener):
            called, caller = (target, source) if link.listener == TARGET else (source, target)
            self._ends = make_ends(called.host, caller.host)

    @property
    def streams(self) -> int:
        return self._settings.streams or self.link.streams

    @property
    def crowded(self) -> bool:
        """Whether more streams are worth their price soon: they were asked for, or the link is a long one."""
        return bool(self._settings.streams) or self.link.seconds > LATENT

    def open(self, generation: str, events: Events, *, small: bool = False) -> Stream:
        """A stream with both its programs running. ``small``: not worth a connection of its own."""
        key = new_key()  # the source never sees it
        receive = {"directory": self.target.directory, "generation": generation, "kind": self._kind, "key": key}
        send = {"directory": self.source.directory}
        if self._ends is not None:
            return self._open_direct(self._ends, send, receive, events, key)
        begin = start if small else start_stream
        with ThreadPoolExecutor(2) as pool:  # two handshakes at once
            sending = pool.submit(begin, self.source.host, "copy.sender.send", send)
            receiving = pool.submit(begin, self.target.host, "copy.disk_receiver.receive", receive)
        return self._stream(sending, receiving, events, key)

    def _open_direct(
        self, ends: Ends, send: dict[str, Any], receive: dict[str, Any], events: Events, key: str
    ) -> Stream:
        sides = {
            SOURCE: (self.source.host, "copy.sender.send", send),
            TARGET: (self.target.host, "copy.disk_receiver.receive", receive),
        }
        called = self.link.listener
        host, function, arguments = sides[called]
        listening = _listening(
            start(host, function, {**arguments, "peer": ends.listener(ports_of(host, self._settings))}), host
        )
        host, function, arguments = sides[SOURCE if called == TARGET else TARGET]
        dialer = ends.dialer([self.link.address], listening.report["port"])
        try:
            dialing = start(host, function, {**arguments, "peer": dialer})
        except BaseException:
            listening.process.close()
            raise
        sender, receiver = (dialing, listening.process) if called == TARGET else (listening.process, dialing)
        return Stream(self.source, self.target, sender, receiver, events, relayed=False, key=key)

    def _stream(self, sending: Any, receiving: Any, events: Events, key: str) -> Stream:
        failed = [each.exception() for each in (sending, receiving) if each.exception() is not None]
        if failed:
            for each in (sending, receiving):
                if each.exception() is None:
                    each.result().close()
            raise failed[0]
        return Stream(self.source, self.target, sending.result(), receiving.result(), events, relayed=True, key=key)
