"""Gather what is left of a run: on its hosts, in its bucket, and in the journals of this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import yaml

from midstream.errors import HostError, MidstreamError
from midstream.launch.host_group_start import AT_ONCE
from midstream.migrate.execution.migration_directory import list_migrations
from midstream.migrate.model import MigrationView
from midstream.plain_yaml import load_plain
from midstream.stores.bucket_access import access_for
from midstream.stores.bucket_checkpoints import BucketRun
from midstream_engine import records

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet
    from midstream.hosts.host_pool import Hosts

TIMEOUT = 120.0  # seconds: a long run's metrics are read through


@dataclass(frozen=True)
class Seen:
    """What is left of a run."""

    run_id: str
    hosts: Mapping[str, Mapping[str, Any]]  # of each host that has a copy, see `remote.repairs.evidence`
    silent: Mapping[str, str]  # why hosts did not answer
    fences: Mapping[str, records.Fence] = field(default_factory=dict)  # that can be read, by where they are
    damaged_fences: Sequence[str] = ()  # where there is one that cannot
    migrations: Sequence[MigrationView] = ()  # of this run that this machine began
    targets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # of the fleet: name -> its hosts

    def lineages(self) -> dict[str, records.Lineage]:
        """Those that can be read, by host."""
        found = {name: seen["lineage"] for name, seen in self.hosts.items() if seen["lineage"] is not None}
        return {name: records.Lineage.from_json(value) for name, value in found.items()}

    def statuses(self) -> list[tuple[str, records.Status]]:
        return [
            (name, records.Status.from_json(process["status"]))
            for name, seen in self.hosts.items()
            for attempt in seen["attempts"]
            for process in attempt["processes"]
            if process["status"] is not None
        ]


def gather(fleet: Fleet, hosts: Hosts, run_id: str) -> Seen:
    """Look at every host of the fleet. MidstreamError where the run's bucket cannot be read."""

    def ask(name: str) -> tuple[str, dict[str, Any] | None, str]:
        try:
            host = hosts.get(name)
            return name, host.call("runs.record_repair.evidence", timeout=TIMEOUT, root=host.root, run_id=run_id), ""
        except HostError as error:
            return name, None, error.message

    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(ask, fleet.hosts))
    found = {name: seen for name, seen, _ in answers if seen is not None and seen["found"]}
    silent = {name: why for name, seen, why in answers if seen is None}
    silent.update({name: error.message for name, error in fleet.absent.items()})
    fences = {f"{name}: fence.json": seen["fence"] for name, seen in found.items() if seen["fence"] is not None}
    known = {place: records.Fence.from_json(value, place) for place, value in fences.items()}
    migrations = [view for view in list_migrations() if view.plan.run_id == run_id]
    known.update(_journaled(migrations))
    broken = [name for name, seen in found.items() if "fence.json" in seen["damaged"]]
    for url in dict.fromkeys(filter(None, (store_of(seen["config"]) for seen in found.values()))):
        try:
            fence = BucketRun(url, run_id, access_for(fleet, url)).fence()
            known.update({} if fence is None else {f"{url}: fence.json": fence})
        except records.RecordError:
            broken.append(url)
        except MidstreamError as error:
            silent[url] = error.message
    targets = {name: fleet.hosts_of(name) for name in fleet.target_names}
    return Seen(run_id, found, silent, known, broken, migrations, targets)


def store_of(config: str) -> str:
    """``gs://...`` where a run's configuration says that its checkpoints are kept; else empty."""
    try:
        value = load_plain(config)
        url = value["trainer"]["checkpointer"]["base_path"]
    except (yaml.YAMLError, ValueError, KeyError, TypeError, RecursionError):
        return ""
    return url.rstrip("/") if isinstance(url, str) and url.startswith("gs://") else ""


def _journaled(migrations: Sequence[MigrationView]) -> dict[str, records.Fence]:
    """The fences that migrations of this machine have sealed a source with."""
    found = {}
    for view in migrations:
        for event in view.events:
            sealed = event.detail.get("sealed")
            if isinstance(sealed, dict) and sealed.get("fence"):
                place = f"the journal of migration {view.migration}"
                found[place] = records.Fence.from_json(sealed["fence"], place)
    return found
