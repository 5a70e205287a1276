"""How the hosts of a target find each other: who reaches whom, where process 0 is to be met, what they share."""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from midstream.errors import LostContact
from midstream.hosts.host import Host, Process
from midstream.hosts.rpc.answer_limits import read_line
from midstream.hosts.rpc.remote_call import START_TIMEOUT, start_program
from midstream.launch.errors import LaunchError

CALL = 60.0  # seconds for one host to try all addresses of another
AT_ONCE = 32  # hosts that are asked at the same time
ENDING = 10.0  # seconds that a listener may take to exit
LINE_LIMIT = 64 << 10  # bytes of what it says


@dataclass(frozen=True)
class Listener:
    """A host that waits to be found."""

    host: str
    port: int
    addresses: tuple[str, ...]  # under which it may be reached, the likeliest first
    token: str


@dataclass(frozen=True)
class Link:
    """Whether one host reaches another, on a port that the other had free a moment ago."""

    source: str
    target: str
    address: str = ""  # under which it does; empty where it does not
    seconds: float = 0.0  # for the connection
    tried: Mapping[str, str] | None = None  # address -> why not

    @property
    def open(self) -> bool:
        return bool(self.address)


@contextlib.contextmanager
def listening(host: Host, internal: str | None = None, ports: Sequence[int] = ()) -> Iterator[Listener]:
    """Let ``host`` wait on a fresh port, of ``ports`` (first, last) where they are given. ``internal``: the only
    address to be tried. LaunchError where no port is free, LostContact."""
    token = secrets.token_hex(16)
    first, last = (ports[0], ports[-1]) if ports else (0, 0)
    process = start_program(host, "machine.network.listen", {"token": token, "first": first, "last": last})
    try:
        line = read_line(process, "machine.network.listen", LINE_LIMIT, silence=START_TIMEOUT)
        if not line.endswith(b"\n"):
            _ended(host, process)  # LostContact, unless it has exited
        said: dict[str, Any] = json.loads(line or b"{}")
        if said.get("event") != "listening":
            raise LaunchError(f"{host.name}: {said.get('message', 'cannot listen')}", "name others as ports: [A, B]")
        yield Listener(host.name, said["port"], (internal,) if internal else tuple(said["addresses"]), token)
        process.stdin.close()
        _ended(host, process)  # the port is free again
    finally:
        process.close()


def _ended(host: Host, process: Process) -> None:
    """Wait until the program has exited. LostContact where that cannot be seen."""
    try:
        process.wait(ENDING)
    except TimeoutError as error:
        raise LostContact(f"{host.name}: what listens there does not end", "run the same again") from error


def try_links(listener: Listener, others: Sequence[Host]) -> list[Link]:
    """Which of ``others`` reach the listener, all asked at once."""

    def ask(other: Host) -> Link:
        found = other.call(
            "machine.network.reach",
            timeout=CALL,
            candidates=list(listener.addresses),
            port=listener.port,
            token=listener.token,
        )
        for address in listener.addresses:
            if "seconds" in found[address]:
                return Link(other.name, listener.host, address, found[address]["seconds"])
        return Link(other.name, listener.host, tried={key: value["error"] for key, value in found.items()})

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(ask, others))


def meet(first: Host, others: Sequence[Host], internal: str | None = None, ports: Sequence[int] = ()) -> str:
    """HOST:PORT of ``first`` under which all others have just reached it; the port is free again. LaunchError naming
    who does not, and what was tried."""
    with listening(first, internal, ports) as listener:
        answers = try_links(listener, others)
        closed = next((link for link in answers if not link.open), None)
        if closed is not None:
            raise LaunchError(_unreachable(closed, listener.port), _mend(closed.target))
        address = _common(listener, others)
        if address is None:
            names = ", ".join(f"{link.source} as {link.address}" for link in answers)
            raise LaunchError(
                f"{first.name} has no address that all other hosts reach ({names})",
                f"internal_address: of {first.name} in the fleet file names one",
            )
        return f"[{address}]:{listener.port}" if ":" in address else f"{address}:{listener.port}"


def _common(listener: Listener, others: Sequence[Host]) -> str | None:
    """The first of the listener's addresses that everybody reaches."""
    for address in listener.addresses:
        alone = Listener(listener.host, listener.port, (address,), listener.token)
        if all(link.open for link in try_links(alone, others)):
            return address
    return None


def _unreachable(link: Link, port: int) -> str:
    tried = "; ".join(f"{address}: {why}" for address, why in (link.tried or {}).items())
    return f"{link.source} does not reach {link.target} on port {port} ({tried})"


def _mend(target: str) -> str:
    return f"open the ports between the hosts, or name internal_address: of {target} and ports: of the target"


def all_links(hosts: Sequence[Host], internal: Mapping[str, str | None], ports: Sequence[int] = ()) -> list[Link]:
    """Every ordered pair of ``hosts``: one listens at a time, the others try."""
    found: list[Link] = []
    for host in hosts:
        with listening(host, internal.get(host.name), ports) as listener:
            found += try_links(listener, [other for other in hosts if other is not host])
    return found


def check_numbers(hosts: Sequence[Host]) -> None:
    """The workers of a slice are numbered by the service, and jax goes by these numbers: process k has to be started on
    worker k. LaunchError where the order is another; a worker that does not tell its number is taken at its place."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        numbers = list(pool.map(lambda host: host.call("machine.preemption_notices.worker", timeout=CALL), hosts))
    for place, (host, number) in enumerate(zip(hosts, numbers, strict=True)):
        if number is not None and number != place:
            raise LaunchError(
                f"{host.name} says that it is worker {number} of its slice, and it was listed as worker {place}",
                "midstream --status lists the workers as the service does now; has the slice been made anew?",
            )


def places(hosts: Sequence[Host]) -> list[list[Host]]:
    """The hosts by the file system under their roots, in their order: those of one list share it. Found out with files,
    because the same path says nothing."""
    if len(hosts) < 2:
        return [[host] for host in hosts]
    tokens = {host.name: secrets.token_hex(16) for host in hosts}

    def put(host: Host) -> None:
        host.call("machine.network.put_token", root=host.root, name=tokens[host.name])

    def seen(host: Host) -> set[str]:
        return set(host.call("machine.network.see_tokens", root=host.root, names=list(tokens.values())))

    def take(host: Host) -> None:
        host.call("machine.network.take_token", root=host.root, name=tokens[host.name])

    with ThreadPoolExecutor(AT_ONCE) as pool:
        try:
            list(pool.map(put, hosts))
            found: list[list[Host]] = []
            for host, sees in zip(hosts, pool.map(seen, hosts), strict=True):
                place = next((each for each in found if tokens[each[0].name] in sees), None)
                if place is None:
                    found.append([host])
                else:
                    place.append(host)
            return found
        finally:
            list(pool.map(take, hosts))


def share_root(hosts: Sequence[Host]) -> list[str]:
    """Names of the hosts that do not see the file system under the first one's root at their own; empty where all share
    it."""
    return [host.name for place in places(hosts)[1:] for host in place]
