"""Lead before the time limit of a SLURM job, at which its run is handed on.

The lead is what the migration is estimated to take, with a margin, before the job's engine is signalled to save.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from midstream.errors import MidstreamError
from midstream.fleet.fleet import Fleet
from midstream.fleet.quantities import parse_duration
from midstream.format import duration
from midstream.hosts.host_pool import HostPool
from midstream.launch.slurm_allocation import query_allocation
from midstream.launch.slurm_job import seconds_to_save
from midstream.migrate.failover import job_restart
from midstream.migrate.journal.request import Request
from midstream.migrate.modes.registry import COLD, WARM
from midstream.migrate.planning import planner
from midstream.migrate.stages import Durations, known_seconds, total_text, unknown_stages
from midstream.watch.snapshot import RunView, Snapshot
from midstream_host.runs.slurm import JobState

MARGIN = 2.0  # times the estimate: rates change, and the first target may refuse
UNKNOWN_STAGE = 900.0  # seconds for each stage of unknown duration
REACTION = 60.0  # seconds for evidence, plan and preflight; SLURM may signal a job up to a minute early
UNPLANNED = 3600.0  # seconds while no migration can be planned
UPDATE_INTERVAL = 600.0  # seconds between two estimates
RETRY_INTERVAL = 60.0  # seconds until the next estimate, where no migration could be planned
CHANGE = 0.25  # share by which a lead changes before it is reported again


@dataclass(frozen=True)
class Lead:
    """Seconds before a job's time limit, and where they are from."""

    seconds: float
    reason: str
    planned: bool = True  # False: no migration could be planned


@dataclass
class TimeLimit:
    """Time limit of the jobs of a guarded run.

    Attributes:
        fleet: The fleet.
        hosts: Connections to the fleet's hosts.
        targets: Targets of the guard, in the order of preference.
        given: The lead as the command line gives it, in seconds; None: not given.
        report: Receives the line that says the lead, when it is first found and when it changes.
    """

    fleet: Fleet
    hosts: HostPool
    targets: Sequence[str]
    given: float | None
    report: Callable[[str], None]
    _lead: Lead | None = None
    _found_at: float = 0.0  # monotonic
    _reported: float = 0.0  # seconds of the lead that was reported last

    def notice(self, snapshot: Snapshot, run: RunView, job: JobState) -> str:
        """Return the notice that the run has to be handed on now.

        Empty: not yet, or the job has no time limit.
        """
        if not job.runs or job.ends <= 0:
            return ""
        lead, remaining = self._current(snapshot, run), max(0.0, job.ends - time.time())
        if abs(lead.seconds - self._reported) > CHANGE * self._reported:
            self._reported = lead.seconds
            self.report(
                f"job {job.job} reaches {job.limit} in {duration(remaining)}; {run.run_id} is handed on "
                f"{duration(lead.seconds)} before it: {lead.reason}"
            )
        return f"job {job.job} reaches {job.limit} in {duration(remaining)}" if remaining < lead.seconds else ""

    def _current(self, snapshot: Snapshot, run: RunView) -> Lead:
        now = time.monotonic()
        if self._lead is not None:
            age = now - self._found_at
            if age < (UPDATE_INTERVAL if self._lead.planned else RETRY_INTERVAL):
                return self._lead
        self._lead, self._found_at = self.find(snapshot, run), now
        return self._lead

    def find(self, snapshot: Snapshot, run: RunView) -> Lead:
        """Find the lead: as it is given, else the longest that one of the targets needs."""
        if self.given is not None:
            return Lead(self.given, "as --guard-lead gives it")
        owner = run.fence.owner if run.fence is not None else ""
        slurm = self.fleet.slurm_of(owner)
        if slurm is not None and slurm.guard_lead is not None:
            return Lead(parse_duration(slurm.guard_lead), f"guard_lead of target {owner}")
        saves = seconds_to_save(() if slurm is None else slurm.sbatch)
        leads, problems = list[Lead](), list[str]()
        for name in self.targets:
            try:
                if job_restart.is_own_target(self.fleet, run, name):
                    leads.append(restart_lead(name, job_restart.stop_seconds(run), saves))
                elif self.fleet.is_login_node(run.host, name) or run.host not in self.fleet.hosts_of(name):
                    leads.append(self._migration_lead(snapshot, run, name, saves))
            except MidstreamError as error:  # HostError too
                problems.append(f"{name}: {error}")
        if leads:
            return max(leads, key=lambda lead: lead.seconds)
        why = f" ({'; '.join(problems)})" if problems else ""
        return Lead(UNPLANNED, f"no migration can be estimated now{why}", planned=False)

    def _migration_lead(self, snapshot: Snapshot, run: RunView, name: str, saves: float) -> Lead:
        target, queue = self.fleet.target(name), 0.0
        shared = self.fleet.is_login_node(run.host, name)
        request = Request(run.run_id, name, mode=COLD if shared else WARM)
        plan = planner.make_plan(self.hosts, snapshot, request)
        if target.slurm is not None and not shared:  # the job is submitted once the run has stopped
            allocation = query_allocation(self.hosts.get(target.slurm.host), name, target.slurm)
            queue = max(0.0, allocation.starts - time.time())
        return migration_lead(name, plan.estimate.duration, saves, queue)


def migration_lead(target: str, stages: Durations, saves: float, queue: float = 0.0) -> Lead:
    """Return the lead that a migration needs.

    Args:
        target: Name of its target.
        stages: Its estimated stages.
        saves: Seconds before the time limit at which the engine is signalled to save.
        queue: Seconds for which the target's own job is expected to wait.
    """
    unknown = unknown_stages(stages)
    seconds = MARGIN * (known_seconds(stages) + queue) + UNKNOWN_STAGE * len(unknown) + saves + REACTION
    parts = [f"{MARGIN:.0f} times the estimate of a migration to {target} ({total_text(stages)})"]
    if queue:
        parts.append(f"{MARGIN:.0f} times the wait in its queue ({duration(queue)})")
    if unknown:
        parts.append(f"{duration(UNKNOWN_STAGE)} for each unknown stage")
    return Lead(seconds, _sum(parts, saves))


def restart_lead(target: str, stop: float, saves: float) -> Lead:
    """Return the lead that a restart needs.

    Args:
        target: Name of the job's own target.
        stop: Estimated seconds until its engine has saved and stopped.
        saves: As of `migration_lead`.
    """
    parts = [f"{MARGIN:.0f} times the estimate of a save on {target} ({duration(stop)})"]
    return Lead(MARGIN * stop + saves + REACTION, _sum(parts, saves))


def _sum(parts: Sequence[str], saves: float) -> str:
    return " + ".join([*parts, f"{duration(saves)} (SLURM's signal to save)", f"{duration(REACTION)} to react"])
