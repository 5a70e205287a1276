"""Checks for ``midstream --check TARGET``: all that need no engine started there."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from midstream.check.check_result import FAIL, PASS, WARN, Check
from midstream.check.host_checks import check_host, reach
from midstream.check.mesh_checks import check_together
from midstream.check.slurm_checks import check_allocation, check_commands
from midstream.errors import HostError, RemoteError
from midstream.fleet.fleet import Fleet, HostConfig, Target
from midstream.hosts.host import Host
from midstream.hosts.host_pool import HostPool
from midstream.hosts.rpc.answer_limits import read_line
from midstream.hosts.rpc.remote_call import start_program
from midstream.hosts.rpc.result_checks import HINT
from midstream.stores.bucket_access import access_for
from midstream.stores.bucket_host import BucketHost
from midstream.stores.host_identity import identity_problem
from midstream_host.machine import checks

CONCURRENCY = 32
CLOCK_EXCHANGES = 5
CLOCK_LIMIT = 256  # bytes of a time as text
SURVEY_TIMEOUT = 120.0  # seconds for a target to survey itself


def check_target(hosts: HostPool, target: Target) -> Iterator[Check]:
    """Yield the checks of a target one after the other.

    The only side effect is a token file that is removed again.
    """
    fleet = hosts.fleet
    members = [hosts.lookup(name) for name in target.hosts]
    with ThreadPoolExecutor(CONCURRENCY) as pool:
        reached = list(pool.map(reach, members))
        yield from reached
        there = [host for host, check in zip(members, reached, strict=True) if check.state == PASS]
        surveys = dict(
            zip(
                [host.name for host in there],
                pool.map(_survey, there, [fleet.hosts[host.name] for host in there]),
                strict=True,
            )
        )
    surveyed: dict[str, checks.Survey] = {}
    skews: dict[str, float] = {}
    for host in there:
        survey = surveys[host.name]
        if isinstance(survey, HostError):
            yield Check("survey", FAIL, survey.message, survey.hint, host.name)
            continue
        surveyed[host.name], skews[host.name] = survey
        login_node = target.slurm is not None
        yield from check_host(host, fleet.config_of(target, host.name), *survey, login_node=login_node)
        yield from check_one_root(fleet, host.name)
        yield from _store(fleet, host)
    if len(members) > 1 and len(surveyed) == len(members):
        yield from check_together(fleet, target, members, surveyed, skews)
    if target.slurm is not None and surveyed:
        yield from check_commands(there[0])
        yield from check_allocation(there[0], fleet.hosts[there[0].name], target.name, target.slurm)


def _survey(host: Host, config: HostConfig) -> tuple[checks.Survey, float] | HostError:
    """Return the host's survey, and its clock minus this machine's in seconds."""
    try:
        survey = host.call(checks.survey, timeout=SURVEY_TIMEOUT)(root=host.root, visible=config.visible)
        return survey, clock_skew(host)
    except HostError as error:
        return error


def check_one_root(fleet: Fleet, name: str) -> Iterator[Check]:
    """Warn where another entry of the fleet file is the same directory."""
    place = _place(fleet.hosts[name])
    for other, config in fleet.hosts.items():
        if other != name and _place(config) == place:
            what = f"{other} is the same machine with the same root: each shows the runs of both"
            yield Check("one root", WARN, what, f"another root: for {name} or {other} in the fleet file", name)


def _place(config: HostConfig) -> tuple[object, ...]:
    """Return what two entries of one directory of one machine have in common."""
    root = os.path.normpath(os.path.expanduser(config.root)) if config.is_local else config.root.rstrip("/")
    address = "" if config.is_local else getattr(config, "address", id(config))
    return config.is_local, address, getattr(config, "port", None), getattr(config, "pod", None), root


def clock_skew(host: Host) -> float:
    """Return the seconds that the host's clock is ahead of this machine's.

    Of a few exchanges the quickest counts: its error is at most half of its duration.
    """
    process = start_program(host, checks.clock)()
    try:
        exchanges: list[tuple[float, float]] = []
        for _ in range(CLOCK_EXCHANGES):
            began = time.time()
            process.stdin.write(b"\n")
            process.stdin.flush()
            theirs, ended = _time_of(host, read_line(process, "machine.checks.clock", CLOCK_LIMIT)), time.time()
            exchanges.append((ended - began, theirs - (began + ended) / 2))
        return min(exchanges)[1]
    finally:
        process.close()


def _time_of(host: Host, line: bytes) -> float:
    """Parse a line of ``machine.checks.clock`` as UTC seconds.

    Raises:
        RemoteError: It is no time.
    """
    try:
        seconds = float(line)
    except ValueError:
        seconds = math.nan
    if not math.isfinite(seconds):
        raise RemoteError(f"{host.name}: the answer of checks.clock is no time: {line[:40]!a}", "Answer", HINT)
    return seconds


def _store(fleet: Fleet, host: Host) -> Iterator[Check]:
    """Check the bucket of a host's checkpoints from here, and its engines' identity."""
    store = fleet.store_of(host.name)
    if not store:
        return
    why, hint = BucketHost(store, access_for(fleet, store)).access_problem(store)
    if why:  # a warning: the host may have another identity, with which its engines train
        yield Check("bucket", WARN, f"this machine cannot list {store}: {why}", hint, host.name)
    else:
        yield Check("bucket", PASS, f"this machine can list {store}", host=host.name)
    if access_for(fleet, store).impersonate:
        why, hint = identity_problem(fleet, host, store)
        yield Check(
            "store",
            FAIL if why else PASS,
            why or f"requests to {store} come from {access_for(fleet, store).impersonate}",
            hint,
            host.name,
        )
