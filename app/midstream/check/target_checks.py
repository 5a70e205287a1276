"""``midstream --check TARGET``: everything that can be known before something is started there."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from midstream.check.check_result import FAIL, PASS, Check
from midstream.check.host_checks import check_host, reach
from midstream.check.mesh_checks import check_together
from midstream.errors import HostError, RemoteError
from midstream.fleet.fleet import Fleet, Target
from midstream.hosts.host import Host
from midstream.hosts.host_pool import Hosts
from midstream.hosts.rpc.answer_limits import read_line
from midstream.hosts.rpc.remote_call import start_program
from midstream.hosts.rpc.result_checks import HINT
from midstream.stores import host_identity
from midstream.stores.bucket_access import access_for

AT_ONCE = 32
EXCHANGES = 5
CLOCK_LIMIT = 256  # bytes of a time as text
SURVEY = 120.0  # seconds for one host to look at itself


def check_target(fleet: Fleet, hosts: Hosts, target: Target) -> Iterator[Check]:
    """The checks, one after the other. No side effects but a token file that is removed again."""
    members = [hosts.peek(name) for name in target.hosts]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        reached = list(pool.map(reach, members))
        yield from reached
        there = [host for host, check in zip(members, reached, strict=True) if check.state == PASS]
        surveys = dict(zip([host.name for host in there], pool.map(_survey, there), strict=True))
    known: dict[str, Any] = {}
    skews: dict[str, float] = {}
    for host in there:
        survey = surveys[host.name]
        if isinstance(survey, HostError):
            yield Check("answers", FAIL, survey.message, survey.hint, host.name)
            continue
        known[host.name], skews[host.name] = survey
        yield from check_host(host, fleet.hosts[host.name], *survey)
        yield from _store(fleet, host)
    if len(members) > 1 and len(known) == len(members):
        yield from check_together(fleet, target, members, known, skews)
    if target.slurm is not None and known:
        yield from _slurm(there[0])


def _survey(host: Host) -> tuple[dict[str, Any], float] | HostError:
    """What the host says of itself, and its clock minus ours."""
    try:
        return host.call("machine.checks.survey", timeout=SURVEY, root=host.root), clock_skew(host)
    except HostError as error:
        return error


def clock_skew(host: Host) -> float:
    """Seconds that the host's clock is ahead of ours: of a few exchanges the quickest, whose error is at most half of
    the time that it took."""
    process = start_program(host, "machine.checks.clock", {})
    try:
        found = []
        for _ in range(EXCHANGES):
            began = time.time()
            process.stdin.write(b"\n")
            process.stdin.flush()
            theirs, ended = _time_of(host, read_line(process, "machine.checks.clock", CLOCK_LIMIT)), time.time()
            found.append((ended - began, theirs - (began + ended) / 2))
        return min(found)[1]
    finally:
        process.close()


def _time_of(host: Host, line: bytes) -> float:
    """UTC seconds of a line of ``machine.checks.clock``. RemoteError where it is no time."""
    try:
        seconds = float(line)
    except ValueError:
        seconds = math.nan
    if not math.isfinite(seconds):
        raise RemoteError(f"{host.name}: checks.clock answered no time: {line[:40]!a}", "Answer", HINT)
    return seconds


def _store(fleet: Fleet, host: Host) -> Iterator[Check]:
    """Of a host whose runs keep their checkpoints in a bucket: whether its engines ask there as the fleet file says."""
    store = fleet.store_of(host.name)
    if store and access_for(fleet, store).impersonate:
        why, hint = host_identity.why_not(fleet, host, store)
        yield Check(
            "store",
            FAIL if why else PASS,
            why or f"asks {store} as {access_for(fleet, store).impersonate}",
            hint,
            host.name,
        )


def _slurm(host: Host) -> Iterator[Check]:
    for command, said in host.call("runs.slurm.commands").items():
        if said.startswith("!"):
            optional = command == "sacct"
            hint = (
                "accounts tell why a job ended; without them the queue does" if optional else "SLURM's client programs"
            )
            yield Check(command, "warn" if optional else FAIL, said[1:], hint, host.name)
        else:
            yield Check(command, PASS, said, host=host.name)
