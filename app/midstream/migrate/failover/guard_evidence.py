"""Evidence that a guard reads from hosts, SLURM and providers."""

from __future__ import annotations

from dataclasses import dataclass

from midstream.errors import HostError, MidstreamError
from midstream.fleet.fleet import Fleet
from midstream.hosts.host_pool import HostPool
from midstream.launch.attempt_monitor import look_at_ranks, ranks_of
from midstream.migrate.failover.run_verdict import FAILED, LOST, Verdict, judge_failed
from midstream.migrate.failover.time_limit import TimeLimit
from midstream.ownership.owner_judge import OWNER
from midstream.providers import fleet_slices
from midstream.providers.provider import SliceStatus
from midstream.watch.snapshot import CONNECTING, LIVE, RunView, Snapshot
from midstream_host.machine import preemption_notices
from midstream_host.runs import slurm


@dataclass
class GuardEvidence:
    """Evidence on one run. ``is_job``: the last notice was about a job's time limit."""

    fleet: Fleet
    hosts: HostPool
    run_id: str
    time_limit: TimeLimit
    is_job: bool = False

    def notice(self, snapshot: Snapshot) -> str:
        """Return the notice that the run's machine or job will end; empty for none."""
        copies = snapshot.believed(self.run_id)
        host = snapshot.host(copies[0].host) if copies else None
        if host is None or host.link != LIVE:
            return ""
        try:
            machine = self.hosts.get(host.name)
            job = machine.call(slurm.job_of_attempt, timeout=30.0)(machine.root, self.run_id, copies[0].attempt)
            if job is not None:  # the login node's own notices do not concern it
                self.is_job = True
                return self.time_limit.notice(snapshot, copies[0], job)
            self.is_job = False
            notice = machine.call(preemption_notices.read, timeout=30.0)()
        except (HostError, MidstreamError):
            return ""
        return notice.message if notice else ""

    def provided(self, snapshot: Snapshot) -> tuple[str, str]:
        """Return the provider's status of the run's machine, and a line that explains it."""
        copies = snapshot.believed(self.run_id)
        if owner := self.owner(snapshot):
            links = {host.name: host.link for host in snapshot.hosts}
            if any(links.get(name) in (LIVE, CONNECTING) for name in self.fleet.hosts_of(owner)):
                return SliceStatus.UNKNOWN, ""  # it may have a copy that is not in the snapshot yet
            return fleet_slices.target_slice_status(self.fleet, owner)
        return fleet_slices.host_slice_status(self.fleet, copies[0].host) if copies else (SliceStatus.UNKNOWN, "")

    def owner(self, snapshot: Snapshot) -> str:
        """Return the target that the run belongs to, or an empty text.

        Empty where a copy on that target is proven to be the owner's. Without signed records, it is the target that the
        run was handed to; empty where the newest copy is on it, and for a run that was not handed over.
        """
        judgement = snapshot.judgement(self.run_id)
        if judgement.head is not None:
            proven = any(standing.kind == OWNER for standing in judgement.standings.values())
            return "" if proven else judgement.head.owner
        run = next(iter(snapshot.believed(self.run_id)), None)
        if run is None or run.running or run.fence is None or run.fence.sealed_step is None:
            return ""  # a run that never migrated belongs to the host that has it, under any name
        owner = run.fence.owner
        owner_hosts = self.fleet.hosts_of(owner) if owner in self.fleet.target_names else ()
        return "" if run.host in owner_hosts else owner

    def with_first_failure(self, run: RunView | None, verdict: Verdict, snapshot: Snapshot) -> Verdict:
        """Return the verdict by the first failure on several hosts, if it says more."""
        if run is None or verdict.lost or not (verdict.kind == FAILED or run.state == "lost"):
            return verdict
        failed = self._failed(run, snapshot)
        # The exit of process 0 is evidence enough; the first failure is the better reason.
        return failed if failed is not None and (verdict.kind == FAILED or failed.kind == LOST) else verdict

    def _failed(self, run: RunView, snapshot: Snapshot) -> Verdict | None:
        """Call `judge_failed` for a run on several hosts.

        None for other runs, or where the hosts do not answer.
        """
        host = snapshot.host(run.host)
        if host is None or host.link != LIVE:
            return None
        try:
            ranks = ranks_of(self.hosts, run.host, run.run_id, run.attempt)
            if len(ranks) < 2:
                return None
            views = look_at_ranks(self.hosts, ranks, run.run_id, run.attempt)
        except MidstreamError:
            return None
        return judge_failed(views, lambda host: fleet_slices.host_slice_status(self.fleet, host))
