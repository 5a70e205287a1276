"""Collection of the inputs to a fleet's costs: hosts, slices and migrations."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from midstream.costs.cost_report import CostReport, make_report, shifted
from midstream.errors import MidstreamError
from midstream.fleet.fleet import Fleet
from midstream.hosts.host_pool import HostPool
from midstream.migrate.journal.migration_directory import list_migrations
from midstream.providers import fleet_slices
from midstream.providers.provider import SliceStatus
from midstream_host.runs import run_times
from midstream_host.runs.run_times import HostTimes

HOST_TIMEOUT = 30.0  # seconds
MAX_CONCURRENT_HOSTS = 32


def collect(hosts: HostPool, seconds: float, now: float | None = None) -> CostReport:
    """Return the costs of the last ``seconds``.

    Hosts and providers that do not answer are named in ``not_known``.
    """
    fleet = hosts.fleet
    until = time.time() if now is None else now
    since = until - seconds

    def read(name: str) -> HostTimes | MidstreamError:
        try:
            host = hosts.get(name)
            if not host.remote_python:
                return MidstreamError("no Python: its runs' records are not read")
            return shifted(host.call(run_times.read, timeout=HOST_TIMEOUT)(root=host.root, since=since), until)
        except MidstreamError as error:
            return error

    names = list(fleet.hosts)
    with ThreadPoolExecutor(MAX_CONCURRENT_HOSTS) as pool:
        answers = dict(zip(names, pool.map(read, names), strict=True))
    times = {name: answer for name, answer in answers.items() if isinstance(answer, HostTimes)}
    failed = {name: error for name, error in answers.items() if isinstance(error, MidstreamError)}
    problems = [_problem(name, error) for name, error in {**failed, **fleet.unavailable}.items()]
    created, more = _created(fleet)
    problems += more
    migrations = list_migrations(fleet)
    return make_report(fleet, times, migrations, (since, until), created=created, not_known=problems)


def _problem(name: str, error: MidstreamError) -> str:
    return error.message if error.message.startswith(f"{name}:") else f"{name}: {error.message}"


def _created(fleet: Fleet) -> tuple[Mapping[str, float], list[str]]:
    """Return the creation time of each worker's slice, and the unlisted zones.

    The mapping is worker -> creation of its slice. There is one line for each zone that could not be listed.
    """
    targets = fleet.slices
    if not targets:
        return {}, []
    listed = fleet_slices.list_slices(fleet)
    billed = (SliceStatus.READY, SliceStatus.STOPPING)
    created = {slice_.path: slice_.created for slice_ in listed.slices if slice_.status in billed and slice_.created}
    created_of: dict[str, float] = {}
    for name, target in targets.items():
        began = created.get(fleet_slices.slice_path(name, target))
        if began is not None:
            created_of.update(dict.fromkeys(target.hosts, began))
    return created_of, list(listed.problems)
