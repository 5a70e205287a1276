"""Target hosts' links: open ports, coordinator's address, shared file systems."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from midstream.errors import ConnectionLostError, RemoteError
from midstream.hosts.host import Host, Process
from midstream.hosts.rpc.answer_limits import decode, read_line
from midstream.hosts.rpc.remote_call import START_TIMEOUT, start_program
from midstream.hosts.rpc.report_types import LISTEN, Done, Listening, Problem
from midstream.hosts.rpc.result_checks import HINT, name_of, report_of
from midstream.install.errors import LaunchError
from midstream_host.machine import network, preemption_notices

REACH_TIMEOUT = 60.0  # seconds for one host to try all addresses of another
CONCURRENCY = 32  # hosts that are requested at the same time
SHUTDOWN_TIMEOUT = 10.0  # seconds that a listener may take to exit
LINE_LIMIT = 64 << 10  # bytes of its report


@dataclass(frozen=True)
class LinkListener:
    """A host that listens on a port."""

    host: str
    port: int
    addresses: tuple[str, ...]  # by which it may be reached, the likeliest first
    token: str


@dataclass(frozen=True)
class HostLink:
    """Result of a connection from one host to a port of another."""

    source: str
    target: str
    address: str = ""  # by which it was reached; empty if it was not
    seconds: float = 0.0  # that the connection took
    tried: Mapping[str, str] | None = None  # address -> error

    @property
    def open(self) -> bool:
        return bool(self.address)


@contextlib.contextmanager
def listening(
    host: Host, internal: str | None = None, ports: Sequence[int] = ()
) -> Generator[LinkListener, None, None]:
    """Context manager. Listen on a free port of ``host``.

    Args:
        host: The host.
        internal: The only address by which it may be reached; by default all of its addresses.
        ports: First and last port that may be used; empty for any.

    Raises:
        LaunchError: No port is free.
        ConnectionLostError: The connection broke.
    """
    token = secrets.token_hex(16)
    first, last = (ports[0], ports[-1]) if ports else (0, 0)
    process = start_program(host, network.listen)(token=token, first=first, last=last)
    try:
        line = read_line(process, "machine.network.listen", LINE_LIMIT, first_byte_timeout=START_TIMEOUT)
        if not line.endswith(b"\n"):
            _ended(host, process)  # ConnectionLostError, unless it has exited
        report = _report(host, line) if line else None
        if not isinstance(report, Listening):
            why = report.message if isinstance(report, Problem) else "cannot listen"
            raise LaunchError(f"{host.name}: {why}", "set other ports with ports: [A, B]")
        yield LinkListener(host.name, report.port, (internal,) if internal else tuple(report.addresses), token)
        process.stdin.close()
        _ended(host, process)  # the port is free again
    finally:
        process.close()


def _report(host: Host, line: bytes) -> Listening | Done | Problem:
    try:
        return report_of(host.name, LISTEN, decode(line))
    except ValueError as error:
        what = f"{host.name}: {name_of(network.listen)}: a line that is no JSON: {error}"
        raise RemoteError(what, "Answer", HINT) from None


def _ended(host: Host, process: Process) -> None:
    """Wait until the program has exited.

    Raises:
        ConnectionLostError: There is no evidence that it has.
    """
    try:
        process.wait(SHUTDOWN_TIMEOUT)
    except TimeoutError as error:
        raise ConnectionLostError(
            f"{host.name}: the program that listens there does not exit", "run the same again"
        ) from error


def try_links(listener: LinkListener, others: Sequence[Host]) -> list[HostLink]:
    """Connect from all of ``others`` to the listener concurrently."""

    def reach(other: Host) -> HostLink:
        attempts = other.call(network.reach, timeout=REACH_TIMEOUT)(
            candidates=list(listener.addresses), port=listener.port, token=listener.token
        )
        for address in listener.addresses:
            answer = attempts.get(address)  # a host may leave one out
            if answer is not None and answer.seconds is not None:
                return HostLink(other.name, listener.host, address, answer.seconds)
        return HostLink(other.name, listener.host, tried={key: value.error for key, value in attempts.items()})

    with ThreadPoolExecutor(CONCURRENCY) as pool:
        return list(pool.map(reach, others))


def meet(first: Host, others: Sequence[Host], internal: str | None = None, ports: Sequence[int] = ()) -> str:
    """Return the HOST:PORT of ``first`` by which all others reach it.

    The port is free again.

    Raises:
        LaunchError: A host does not reach it; the message has the host and the addresses.
    """
    with listening(first, internal, ports) as listener:
        answers = try_links(listener, others)
        closed = next((link for link in answers if not link.open), None)
        if closed is not None:
            raise LaunchError(_unreachable(closed, listener.port), _ports_hint(closed.target))
        address = _common(listener, others)
        if address is None:
            names = ", ".join(f"{link.source} as {link.address}" for link in answers)
            raise LaunchError(
                f"{first.name} has no address that all other hosts reach ({names})",
                f"internal_address: of {first.name} in the fleet file names one",
            )
        return f"[{address}]:{listener.port}" if ":" in address else f"{address}:{listener.port}"


def _common(listener: LinkListener, others: Sequence[Host]) -> str | None:
    """Return the first of the listener's addresses by which all hosts reach it."""
    for address in listener.addresses:
        single = LinkListener(listener.host, listener.port, (address,), listener.token)
        if all(link.open for link in try_links(single, others)):
            return address
    return None


def _unreachable(link: HostLink, port: int) -> str:
    tried = "; ".join(f"{address}: {why}" for address, why in (link.tried or {}).items())
    return f"{link.source} does not reach {link.target} on port {port} ({tried})"


def _ports_hint(target: str) -> str:
    return f"open the ports between the hosts, or set internal_address: of {target} and ports: of the target"


def all_links(hosts: Sequence[Host], internal: Mapping[str, str | None], ports: Sequence[int] = ()) -> list[HostLink]:
    """Test every ordered pair of ``hosts``: one listens at a time, the others connect."""
    links: list[HostLink] = []
    for host in hosts:
        with listening(host, internal.get(host.name), ports) as listener:
            links += try_links(listener, [other for other in hosts if other is not host])
    return links


def check_numbers(hosts: Sequence[Host]) -> None:
    """Check that process k is started on worker k of a slice.

    jax uses the worker numbers of the TPU service.

    A worker without a number is accepted.

    Raises:
        LaunchError: A worker has another number.
    """

    def number_of(host: Host) -> int | None:
        return host.call(preemption_notices.worker, timeout=REACH_TIMEOUT)()

    with ThreadPoolExecutor(CONCURRENCY) as pool:
        numbers = list(pool.map(number_of, hosts))
    for index, (host, number) in enumerate(zip(hosts, numbers, strict=True)):
        if number is not None and number != index:
            raise LaunchError(
                f"{host.name} is worker {number} of its slice, and was listed as worker {index}",
                "midstream --status lists the workers as the service does now; was the slice created again?",
            )


def group_by_file_system(hosts: Sequence[Host]) -> list[list[Host]]:
    """Group the hosts by the file system of their roots: those of one list share it.

    Each host writes a file and looks for those of the others, because the same path proves nothing.
    """
    if len(hosts) < 2:
        return [[host] for host in hosts]
    tokens = {host.name: secrets.token_hex(16) for host in hosts}

    def put(host: Host) -> None:
        host.call(network.write_token)(root=host.root, name=tokens[host.name])

    def seen(host: Host) -> set[str]:
        return set(host.call(network.find_tokens)(root=host.root, names=list(tokens.values())))

    def take(host: Host) -> None:
        host.call(network.delete_token)(root=host.root, name=tokens[host.name])

    with ThreadPoolExecutor(CONCURRENCY) as pool:
        try:
            list(pool.map(put, hosts))
            groups: list[list[Host]] = []
            for host, sees in zip(hosts, pool.map(seen, hosts), strict=True):
                group = next((group for group in groups if tokens[group[0].name] in sees), None)
                if group is None:
                    groups.append([host])
                else:
                    group.append(host)
            return groups
        finally:
            list(pool.map(take, hosts))


def hosts_apart(hosts: Sequence[Host]) -> list[str]:
    """Return the names of the hosts without the file system of the first host's root."""
    return [host.name for group in group_by_file_system(hosts)[1:] for host in group]
