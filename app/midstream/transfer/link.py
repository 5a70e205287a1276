"""The link between two hosts: which routes are possible, found by a short probe.

- *pipe*: both ends are this machine.
- *ssh*: one end is this machine; the SSH connections, or kubectl's, carry the bytes.
- *direct*: over TLS. Between two other hosts if one can connect to the other: no byte passes through this machine.
  Between this machine and a host if this machine can connect to a port there.
- *bucket*: one end is a bucket, whose client runs on this machine or on the host at the other end.
- *relay*: between two other hosts through this machine, as a stream that is never stored.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from midstream.errors import ConnectionLostError, HostError
from midstream.hosts.host import Host, Process
from midstream.hosts.kubernetes_host import KubernetesHost
from midstream.hosts.remote_hosts import is_remote, is_ssh
from midstream.hosts.rpc import report_types
from midstream.hosts.ssh.resolved_options import resolve
from midstream.stores.bucket_host import BucketHost
from midstream.transfer.copy_reports import checked_reports
from midstream.transfer.copy_settings import DIRECT, RELAY, CopySettings, ports_of, settings_of_hosts
from midstream.transfer.endpoint import Endpoint
from midstream.transfer.stream_transport import start, transport_name
from midstream.transfer.tls_certificates import make_peers
from midstream_host.copy import tls_peer

if TYPE_CHECKING:
    from midstream.hosts.ssh.ssh_host import SshHost


MAX_PINGS = 3
PING_TIME = 0.050  # seconds of measured round trips after which a further ping adds nothing
PROBE_TIMEOUT = 20.0  # seconds
HIGH_LATENCY = 0.010  # seconds of round trip from which the windows of one stream are too small
STREAM_LATENCY = 0.008  # seconds of round trip that one more stream compensates
MAX_STREAMS = 8
MIN_PORT = 1024  # the programs of a copy have no rights to lower ones
BEHIND_PROXY = "a proxy or a jump host is between"
REASON_LIMIT = 300  # characters of why there is no direct route
SOURCE, TARGET = "source", "target"


@dataclass(frozen=True)
class Link:
    """The route that the bytes take.

    Attributes:
        kind: pipe, ssh, direct, relay or bucket.
        seconds: Round trip time.
        listener: The end that listens (source or target) if the programs of both ends connect to each other; of a
            bucket, set if its client runs on the host at the other end.
        address: Address of the listener on a direct route.
        transport: The program that moves the bytes through SSH.
        not_direct: Why no direct route is possible.
    """

    kind: str
    seconds: float = 0.0
    listener: str = ""
    address: str = ""
    transport: str = ""
    not_direct: str = ""

    def text(self, source: str, target: str) -> str:
        """Describe the route in one line."""
        milliseconds = f"{self.seconds * 1000:.1f} ms"
        if self.kind == "direct":
            caller, called = (source, target) if self.listener == TARGET else (target, source)
            return (
                f"direct, {source} -> {target} over TLS "
                f"({caller} connects to {called} at {self.address}, {milliseconds})"
            )
        if self.kind == "relay":
            note = f"; not direct: {self.not_direct}" if self.not_direct else ""
            return f"relayed, {source} -> this machine -> {target} over {self.connection} ({milliseconds}{note})"
        if self.kind == "bucket":
            if self.listener:  # the client runs on the host at the other end
                return f"direct, {source} -> {target} over HTTPS"
            note = f"; not direct: {self.not_direct}" if self.not_direct else ""
            how = f" ({milliseconds} to the host{note})" if self.seconds else note
            return f"{source} -> this machine -> {target} over HTTPS{how}"
        if self.kind == "ssh":
            note = f"; not direct: {self.not_direct}" if self.not_direct else ""
            return f"{source} -> {target} over {self.connection} ({milliseconds}{note})"
        return f"{source} -> {target} on this machine"

    @property
    def connection(self) -> str:
        """Name of the connection that the bytes pass through."""
        return "kubectl exec" if self.transport == "kubectl" else "SSH"

    @property
    def streams(self) -> int:
        """Number of streams that fill the link.

        A stream uses two cores, so one for every two cores of this machine, and more if windows wait for the round
        trip.
        """
        cores = min(4, max(1, (os.cpu_count() or 1) // 2))
        more = round(self.seconds / STREAM_LATENCY) if self.seconds > HIGH_LATENCY else 0
        return min(MAX_STREAMS, cores + more)


def probe(source: Host, target: Host, settings: CopySettings | None = None) -> Link:
    """Find the best possible route. Leaves nothing on the hosts.

    Raises:
        HostError: The settings demand a direct route, and there is none.
        ConnectionLostError: A connection broke.
    """
    settings = settings or settings_of_hosts(source, target)
    for end, other in ((source, target), (target, source)):
        if isinstance(end, BucketHost):
            return _probe_bucket(end, other)
    remote = [host for host in (source, target) if is_remote(host)]
    if not remote:
        return Link("pipe")
    test = _probe_direct if len(remote) == 2 else _probe_from_here
    with ThreadPoolExecutor(3) as pool:
        times = [pool.submit(_round_trip, host) for host in remote]
        direct = pool.submit(test, source, target, settings)
        seconds = sum(future.result() for future in times)
        link = direct.result()
    if link.kind == "direct":
        return replace(link, transport=transport_name(remote[0])) if len(remote) == 1 else link
    if len(remote) == 1:
        return Link("ssh", seconds, transport=transport_name(remote[0]), not_direct=link.not_direct)
    if settings.route == DIRECT:
        raise HostError(
            f"no direct route between {source.name} and {target.name}: {link.not_direct}",
            "open a port between them and name it (copy_ports: FIRST-LAST), or remove copy_route: direct",
        )
    return Link("relay", seconds, transport=transport_name(target), not_direct=link.not_direct)


def _probe_bucket(bucket: BucketHost, other: Host) -> Link:
    """Return the link between a bucket and the host at the other end."""
    if bucket.via is not None and bucket.runs_on(other):
        return Link("bucket", 0.0, TARGET)
    seconds = _round_trip(other) if is_remote(other) else 0.0
    return Link("bucket", seconds, transport=transport_name(other))


def _round_trip(host: SshHost | KubernetesHost) -> float:
    """Return the shortest of a few round trips, in seconds."""
    seconds: list[float] = []
    while len(seconds) < MAX_PINGS and sum(seconds) < PING_TIME:
        began = time.monotonic()
        host.ping()
        seconds.append(time.monotonic() - began)
    return min(seconds)


def _probe_direct(source: Host, target: Host, settings: CopySettings) -> Link:
    if settings.route == RELAY:
        return Link("relay", not_direct="route: relay")
    reasons: list[str] = []
    with ThreadPoolExecutor(2) as pool:
        attempts = [
            (TARGET, pool.submit(_connect, source, target, settings)),
            (SOURCE, pool.submit(_connect, target, source, settings)),
        ]
        for listener, attempt in attempts:
            try:
                answer = attempt.result()
            except (HostError, OSError, ValueError) as error:
                reasons.append(str(error))
                continue
            if answer["address"] and answer["seconds"] is not None:
                return Link("direct", answer["seconds"], listener, answer["address"])
            reasons.append(f"{listener} is unreachable: {answer['why']}")
    return Link("relay", not_direct="; ".join(reasons)[:REASON_LIMIT])


def _probe_from_here(source: Host, target: Host, settings: CopySettings) -> Link:
    """Probe whether this machine can connect to the host at the other end."""
    listener, host, here = (TARGET, target, source) if is_remote(target) else (SOURCE, source, target)
    if settings.route == RELAY or not is_ssh(host):
        return Link("ssh")
    if not host.peer_address:
        return Link("ssh", not_direct=BEHIND_PROXY)
    try:
        connection = _connect(here, host, settings, [host.peer_address])
    except (HostError, OSError, ValueError) as error:
        return Link("ssh", not_direct=str(error)[:REASON_LIMIT])
    if connection["address"] and connection["seconds"] is not None:
        return Link("direct", connection["seconds"], listener, connection["address"])
    return Link("ssh", not_direct=connection["why"][:REASON_LIMIT])


def _connect(
    caller: Host, called: Host, settings: CopySettings, only: list[str] | None = None
) -> tls_peer.ConnectionProbe:
    """Start a listener on one host and let the other connect to it.

    ``only``: the addresses that it may connect to; by default those that the host reports, too.
    """
    peers = make_peers(called, caller)
    peer = peers.listener(ports_of(called, settings), ssh_address=only is not None)
    listening = wait_listening(start(called, tls_peer.answer)(peer=peer), called)
    try:
        check_port(called, settings, listening.port)
        addresses = only if only is not None else [*listening.addresses, *_operator_address(called)]
        dialer = peers.dialer(list(dict.fromkeys(addresses)), listening.port)
        return caller.call(tls_peer.probe, timeout=PROBE_TIMEOUT)(peer=dialer)
    finally:
        listening.process.close()


def check_port(host: Host, settings: CopySettings, port: int) -> None:
    """Raise HostError where a host reports a port that no copy may use."""
    first, last = ports_of(host, settings) or (MIN_PORT, 65535)
    if not first <= port <= last:
        raise HostError(f"{host.name}: it reports port {port}, on which no copy may listen")


def _operator_address(host: Host) -> list[str]:
    """Return the address by which this machine reaches the host."""
    return [resolve(host.name, host.config).hostname] if is_ssh(host) else []


@dataclass(frozen=True)
class Listener:
    """A program on a host that waits for a connection."""

    process: Process
    port: int
    addresses: tuple[str, ...]


def wait_listening(process: Process, host: Host) -> Listener:
    """Wait until the program has reported its port.

    Raises:
        HostError: It reports that it cannot listen.
        ConnectionLostError: It exited without a report.
    """
    try:
        for report in checked_reports(process, Endpoint(host, "")):
            if isinstance(report, report_types.Listening):
                return Listener(process, report.port, tuple(report.addresses))
            why = report.message if isinstance(report, report_types.CopyProblem | report_types.Waiting) else ""
            raise HostError(f"{host.name}: {why or 'it does not listen'}")
        words = process.stderr_text().strip().splitlines()
        raise ConnectionLostError(f"{host.name}: it does not listen: {words[-1] if words else 'no message'}")
    except BaseException:
        process.close()
        raise
