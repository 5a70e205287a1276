"""Evidence of a run from its hosts, its bucket and the journals of this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import yaml

from midstream.errors import HostError, MidstreamError
from midstream.hosts.host_pool import HostPool
from midstream.launch.host_group_start import CONCURRENCY
from midstream.migrate.journal.migration_directory import list_migrations
from midstream.migrate.journal.migration_view import MigrationView
from midstream.ownership.judgement import Judgement
from midstream.ownership.owner_judge import HostCopy, OwnerJudge
from midstream.plain_yaml import load_plain
from midstream.stores.bucket_access import access_for
from midstream.stores.bucket_run import BucketRun
from midstream_core import records
from midstream_core.object_store.urls import in_bucket
from midstream_host.runs import record_repair

EVIDENCE_TIMEOUT = 120.0  # seconds, for a host that reads all metrics of a long run


@dataclass(frozen=True)
class FleetEvidence:
    """Evidence of a run from the entire fleet."""

    run_id: str
    hosts: Mapping[str, record_repair.RunEvidence]  # by host, where it has a copy
    unreachable: Mapping[str, str]  # host or bucket -> error
    fences: Mapping[str, records.Fence] = field(default_factory=dict[str, records.Fence])  # readable ones, by location
    damaged_fences: Sequence[str] = ()  # locations of unreadable ones
    newer_fences: Sequence[str] = ()  # locations of those that a newer midstream wrote
    migrations: Sequence[MigrationView] = ()  # of this run, started on this machine
    targets: Mapping[str, tuple[str, ...]] = field(
        default_factory=dict[str, tuple[str, ...]]
    )  # of the fleet: name -> hosts
    judgement: Judgement = field(default_factory=lambda: Judgement(""))  # of what the hosts show
    # Complete checkpoints in buckets, by the bucket's URL: epoch, step, start.
    stored: Mapping[str, Sequence[tuple[int, int, int]]] = field(
        default_factory=dict[str, Sequence[tuple[int, int, int]]]
    )

    # Starts of the owner's epoch that its own records may lack, and what shows each.
    claimed_starts: Mapping[int, str] = field(default_factory=dict[int, str])

    def lineages(self) -> dict[str, records.Lineage]:
        """Return the readable lineages by host."""
        return {name: evidence.lineage for name, evidence in self.hosts.items() if evidence.lineage is not None}

    def statuses(self) -> list[tuple[str, records.Status]]:
        """Return (host, status) of each readable status."""
        return [
            (name, process.status)
            for name, evidence in self.hosts.items()
            for attempt in evidence.attempts
            for process in attempt.processes
            if process.status is not None
        ]


def gather(hosts: HostPool, run_id: str) -> FleetEvidence:
    """Read the evidence from the fleet's hosts, the run's buckets and the journals."""
    fleet = hosts.fleet

    def read(name: str) -> tuple[str, record_repair.RunEvidence | None, str]:
        try:
            host = hosts.get(name)
            return name, host.call(record_repair.evidence, timeout=EVIDENCE_TIMEOUT)(root=host.root, run_id=run_id), ""
        except HostError as error:
            return name, None, error.message

    with ThreadPoolExecutor(CONCURRENCY) as pool:
        answers = list(pool.map(read, fleet.hosts))
    evidence_of = {name: evidence for name, evidence, _ in answers if evidence is not None and evidence.exists}
    unreachable = {name: why for name, evidence, why in answers if evidence is None}
    unreachable.update({name: error.message for name, error in fleet.unavailable.items()})
    fences = {
        f"{name}: fence.json": evidence.fence for name, evidence in evidence_of.items() if evidence.fence is not None
    }
    migrations = [view for view in list_migrations() if view.plan.run_id == run_id]
    fences.update(_journaled(migrations))
    damaged = [name for name, evidence in evidence_of.items() if "fence.json" in evidence.damaged]
    newer = [name for name, evidence in evidence_of.items() if "fence.json" in evidence.newer]
    stored: dict[str, Sequence[tuple[int, int, int]]] = {}
    for url in dict.fromkeys(filter(None, (store_of(evidence.config) for evidence in evidence_of.values()))):
        try:
            bucket = BucketRun(url, run_id, access_for(fleet, url))
            fence = bucket.fence()
            fences.update({} if fence is None else {f"{url}: fence.json": fence})
            complete = [checkpoint for checkpoint in bucket.checkpoints() if checkpoint.complete]
            stored[url] = [(checkpoint.epoch, checkpoint.step, checkpoint.start) for checkpoint in complete]
        except records.NewerFormatError:
            newer.append(url)
        except records.RecordError:
            damaged.append(url)
        except MidstreamError as error:
            unreachable[url] = error.message
    targets = {name: fleet.hosts_of(name) for name in fleet.target_names}
    shown = [HostCopy(name, evidence.fence, evidence.ownership) for name, evidence in evidence_of.items()]
    judgement = OwnerJudge(fleet).judge(run_id, shown)
    return FleetEvidence(
        run_id, evidence_of, unreachable, fences, damaged, newer, migrations, targets, judgement, stored
    )


def store_of(config: str) -> str:
    """Return the URL of the checkpoints in a run's config; empty where there is none."""
    try:
        value = load_plain(config)
        url = value["trainer"]["checkpointer"]["base_path"]
    except (yaml.YAMLError, ValueError, KeyError, TypeError, RecursionError):
        return ""
    return url.rstrip("/") if isinstance(url, str) and in_bucket(url) else ""


def _journaled(migrations: Sequence[MigrationView]) -> dict[str, records.Fence]:
    """Return the fences that migrations of this machine have sealed a source with."""
    journaled: dict[str, records.Fence] = {}
    for view in migrations:
        if view.facts.sealed is not None:
            journaled[f"the journal of migration {view.migration}"] = view.facts.sealed.fence
    return journaled
