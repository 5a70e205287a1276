"""Verdict on a guarded run, from what its hosts and its provider report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from midstream.hosts.rpc.result_checks import repair_hint
from midstream.launch.attempt_monitor import first_failure
from midstream.launch.rank_view import RankView
from midstream.providers.provider import SliceStatus
from midstream.watch.damaged_runs import describe
from midstream.watch.snapshot import LIVE, RunView, Snapshot
from midstream_core import records

# Verdicts on a run.
HEALTHY, LOST, TERMINATING = "healthy", "lost", "terminating"
UNREACHABLE, ENDED, FAILED = "unreachable", "ended", "failed"


@dataclass(frozen=True)
class Verdict:
    """Verdict on a run and its reason, in one line."""

    kind: str
    reason: str = ""
    lost: bool = False  # machines of the run are preempted, so that their disks cannot be read


def judge(
    snapshot: Snapshot,
    run_id: str,
    notice: str = "",
    provided: tuple[str, str] = (SliceStatus.UNKNOWN, ""),
    owner: str = "",
) -> tuple[RunView | None, Verdict]:
    """Judge the run by its proven owner's copy; without proof, by the newest one.

    What another host shows is no evidence.

    Args:
        snapshot: Current snapshot of the fleet.
        run_id: The run.
        notice: Preemption notice of its machine; empty: none.
        provided: Provider's status of the machine, and a line that describes it.
        owner: Target that the run belongs to, where no copy on it is proven; else empty.
    """
    judgement = snapshot.judgement(run_id)
    if judgement.problem:
        return None, Verdict(UNREACHABLE, f"{judgement.problem} (midstream --repair {run_id} shows them)")
    damaged = next((copy for copy in snapshot.deciding(run_id) if copy.damaged), None)
    if damaged is not None:
        return damaged, Verdict(UNREACHABLE, f"{describe(damaged)} ({repair_hint(damaged.host, run_id)})")
    copies = snapshot.believed(run_id)
    if not copies:
        return None, Verdict(UNREACHABLE, f"no host that answers has run {run_id}, proven to be its owner's")
    run = copies[0]
    if owner:
        shown = [f"{host}: {judgement.standing(host).reason}" for host in judgement.owner_hosts
                 if host in judgement.standings]  # fmt: skip
        if judgement.head is None:
            what = f"{run_id} was handed to {owner}, and no copy of it is found there"
        else:
            claims = "; ".join(shown) or "no copy of it is found there"
            what = f"{run_id} belongs to {owner} by a signed record (ownership {judgement.head.epoch}), and {claims}"
        is_preempted = provided[0] == SliceStatus.PREEMPTED
        more = f"; {provided[1]}" if provided[1] else ""
        return run, Verdict(LOST if is_preempted else UNREACHABLE, f"{what}{more}", lost=is_preempted)
    host = snapshot.host(run.host)
    if host is None or host.link != LIVE:
        why = host.error if host is not None and host.error else "no answer"
        if provided[0] == SliceStatus.PREEMPTED:
            return run, Verdict(LOST, f"{run.host} does not answer, and {provided[1]}", lost=True)
        more = f"; {provided[1]}" if provided[1] else ""
        return run, Verdict(UNREACHABLE, f"{run.host} does not answer ({why}): it may be training{more}")
    if run.state == records.FINISHED:
        return run, Verdict(ENDED, f"finished at step {run.step}")
    if run.state == records.FAILED:
        message = run.status.message if run.status and run.status.message else "see its log"
        return run, Verdict(FAILED, f"the engine failed on {run.host}: {message}")
    if run.state == "unknown":
        return run, Verdict(UNREACHABLE, f"{run.host}: {run.remark}")
    if run.state == "lost":
        return run, Verdict(LOST, f"the engine's process on {run.host} exited at step {run.step}")
    if notice:
        return run, Verdict(TERMINATING, f"{run.host}: {notice}")
    if provided[0] in (SliceStatus.STOPPING, SliceStatus.PREEMPTED) and run.state != records.STOPPED:
        return run, Verdict(TERMINATING, f"{run.host} still answers, and {provided[1]}")
    if run.state == records.STOPPED and not run.running:  # a job that was requeued runs again
        return run, Verdict(ENDED, f"stopped at step {run.step} on {run.host}")
    return run, Verdict(HEALTHY)


def judge_failed(ranks: Sequence[RankView], provided: Callable[[str], tuple[str, str]]) -> Verdict | None:
    """Judge whether one of a failed run's several processes was ended from outside.

    None where the run failed by an error of its own. ``provided`` returns the provider's status of a host, as in
    `judge`.
    """
    unreachable = next((rank for rank in ranks if rank.problem), None)
    if unreachable is not None:
        status, why = provided(unreachable.host)
        what = f"{unreachable.host} does not answer ({unreachable.problem}), and the run has ended on the others"
        return (
            Verdict(LOST, f"{what}; {why}", lost=True)
            if status == SliceStatus.PREEMPTED
            else Verdict(UNREACHABLE, what)
        )
    first = first_failure(ranks)
    if first is None or not first.ended_from_outside:
        return None
    return Verdict(LOST, f"{first.name} exited, and the others ended because of it: {first.why}")
