"""Watch over a run, and move it by itself when there is positive evidence that its machine is gone or going.

What counts: a machine that answers and on which the engine's process is gone while its status says that it runs
(killed, or another boot), be it one of several, whose others have failed for want of it; a notice that the machine will
be taken away; its provider's word that it was. What does not: silence. A machine that does not answer may be training;
the guard tells a person, and touches nothing.

Where nothing of the source answers any more, its provider says that it is gone, and its checkpoints lie in a bucket,
the run goes on from the newest complete one there, by way of a copy on a machine that answers: as with
``--source-lost``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from midstream.errors import Exit, HostError, MidstreamError
from midstream.hosts.deadline import Deadline
from midstream.hosts.providers import fleet_slices, interface
from midstream.hosts.rpc.result_checks import repair_hint
from midstream.launch.attempt_monitor import RankView, first_failure, look_at_ranks, ranks_of
from midstream.migrate import host_files, model
from midstream.migrate.execution import migration_process
from midstream.migrate.execution.migration_directory import list_migrations
from midstream.migrate.failover import notify
from midstream.migrate.planning import plan as planning
from midstream.migrate.planning import preflight
from midstream.migrate.planning.source_config import check_config
from midstream.watch.damaged_runs import describe
from midstream.watch.snapshot import CONNECTING, LIVE
from midstream.watch.symptoms import symptoms
from midstream_engine import records

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet
    from midstream.hosts.host_pool import Hosts
    from midstream.watch.snapshot import RunView, Snapshot
    from midstream.watch.watcher import Watch

# What a look at the run comes to.
WELL, GONE, GOING, SILENT, ENDED, BROKEN = "well", "gone", "going", "silent", "ended", "broken"
PERSISTS = 6.0  # seconds that evidence has to last: whoever restarts the engine by hand is not raced
NOTICES_EVERY = 10.0  # seconds between two looks for a notice
SILENCE = 300.0  # seconds without contact after which a person is told
LOOK = 2.0  # seconds


@dataclass(frozen=True)
class Verdict:
    """What was found, and why: one line."""

    kind: str
    reason: str = ""
    lost: bool = False  # machines that had a part in it are gone for good: what is on their disks is not to be had


def judge(
    snapshot: Snapshot,
    run_id: str,
    notice: str = "",
    provided: tuple[str, str] = (interface.UNCLEAR, ""),
    holder: str = "",
) -> tuple[RunView | None, Verdict]:
    """The run's present copy, and what it comes to. ``notice``: what its machine says of its own end, if anything;
    ``provided``: what the machine's provider says of it, a standing and a line; ``holder``: the target that the run was
    handed to, where no copy is seen on it."""
    copies = snapshot.copies(run_id)
    if not copies:
        return None, Verdict(SILENT, f"no host that answers has run {run_id}")
    run = next((copy for copy in copies if copy.damaged), copies[0])
    if run.damaged:
        return run, Verdict(SILENT, f"{describe(run)} ({repair_hint(run.host, run_id)})")
    if holder:
        what = f"{run_id} was handed to {holder}, of which nothing is seen"
        gone = provided[0] == interface.PREEMPTED
        more = f"; {provided[1]}" if provided[1] else ""
        return run, Verdict(GONE if gone else SILENT, f"{what}{more}", lost=gone)
    host = snapshot.host(run.host)
    if host is None or host.link != LIVE:
        why = host.error if host is not None and host.error else "no answer"
        if provided[0] == interface.PREEMPTED:
            return run, Verdict(GONE, f"{run.host} does not answer, and {provided[1]}", lost=True)
        more = f"; {provided[1]}" if provided[1] else ""
        return run, Verdict(SILENT, f"{run.host} does not answer ({why}): it may be training{more}")
    if run.state == records.FINISHED:
        return run, Verdict(ENDED, f"finished at step {run.step}")
    if run.state == records.FAILED:
        message = run.status.message if run.status and run.status.message else "see its log"
        return run, Verdict(BROKEN, f"the engine failed on {run.host}: {message}")
    if run.state == "lost":
        return run, Verdict(GONE, f"the engine's process on {run.host} is gone at step {run.step}")
    if notice:
        return run, Verdict(GOING, f"{run.host}: {notice}")
    if provided[0] in (interface.GOING, interface.PREEMPTED) and run.state != records.STOPPED:
        return run, Verdict(GOING, f"{run.host} still answers, and {provided[1]}")
    if run.state == records.STOPPED:
        return run, Verdict(ENDED, f"stopped at step {run.step} on {run.host}")
    return run, Verdict(WELL)


def judge_failed(ranks: Sequence[RankView], provided: Callable[[str], tuple[str, str]]) -> Verdict | None:
    """Why a run of several processes has failed, where that is not an error of its own: one was taken from it. None
    otherwise. ``provided``: what the provider says of a host, see `judge`."""
    silent = next((rank for rank in ranks if rank.trouble), None)
    if silent is not None:
        standing, why = provided(silent.host)
        what = f"{silent.host} does not answer ({silent.trouble}), and the run has ended on the others"
        return Verdict(GONE, f"{what}; {why}", lost=True) if standing == interface.PREEMPTED else Verdict(SILENT, what)
    guilty = first_failure(ranks)
    if guilty is None or not guilty.taken:
        return None
    return Verdict(GONE, f"{guilty.name} is gone, and the others ended for it: {guilty.why}")


@dataclass
class Guard:
    """Guards one run. ``tell`` gets every event; ``tries`` is the number of moves that it may begin."""

    fleet: Fleet
    hosts: Hosts
    watch: Watch
    run_id: str
    targets: Sequence[str]
    tries: int
    tell: Callable[[dict[str, Any]], None]
    agreed: bool = False  # a person has agreed to whatever a plan asks consent for
    _told: set[str] = field(default_factory=set)

    def run(self) -> Exit:
        """Until the run ends, a person is needed, or the tries are spent."""
        lasting: dict[str, Deadline] = {}
        notice, provided, asked = "", (interface.UNCLEAR, ""), 0.0
        while True:
            snapshot = self.watch.snapshot()
            now = time.monotonic()
            if now - asked > NOTICES_EVERY:
                notice, provided, asked = self._notice(snapshot), self._provided(snapshot), now
            run, verdict = judge(snapshot, self.run_id, notice, provided, self.owner(snapshot))
            if run is not None and not verdict.lost and (verdict.kind == BROKEN or run.state == "lost"):
                found = self._failed(run, snapshot)
                # That process 0 is gone is evidence enough; who went first is the better reason.
                if found is not None and (verdict.kind == BROKEN or found.kind == GONE):
                    verdict = found
            # Time in which this process did not run is no evidence: what it saw before is old by then.
            lasting = {verdict.kind: lasting.get(verdict.kind) or Deadline(None)}
            lasting[verdict.kind].count()
            lasted = lasting[verdict.kind].spent
            if verdict.kind == ENDED and lasted >= PERSISTS:
                self._say(notify.FINISHED, verdict.reason)
                return Exit.DONE
            if verdict.kind == BROKEN and lasted >= PERSISTS:
                self._say(notify.NEEDS_YOU, f"{verdict.reason}; another machine would not mend that")
                return Exit.FAILED
            if run is not None and run.damaged and lasted >= PERSISTS:
                self._once(notify.NEEDS_YOU, f"{verdict.reason}; the run is not moved before that is repaired")
            elif verdict.kind == SILENT and lasted >= SILENCE:
                self._once(notify.NEEDS_YOU, f"{verdict.reason}; nothing is done without evidence")
            if verdict.kind in (GONE, GOING) and lasted >= PERSISTS and run is not None:
                if not self._under_way():
                    self._say(notify.LOST, verdict.reason)
                    self._move(run, verdict)
                    lasting, notice, provided, asked = {}, "", (interface.UNCLEAR, ""), 0.0
            elif verdict.kind == WELL:
                self._symptoms(run)
            time.sleep(LOOK)

    def _notice(self, snapshot: Snapshot) -> str:
        copies = snapshot.copies(self.run_id)
        host = snapshot.host(copies[0].host) if copies else None
        if host is None or host.link != LIVE:
            return ""
        try:
            found = self.hosts.get(host.name).call("machine.preemption_notices.read", timeout=30.0)
        except (HostError, MidstreamError):
            return ""
        return str(found["message"]) if found else ""

    def _provided(self, snapshot: Snapshot) -> tuple[str, str]:
        copies = snapshot.copies(self.run_id)
        if holder := self.owner(snapshot):
            links = {host.name: host.link for host in snapshot.hosts}
            if any(links.get(name) in (LIVE, CONNECTING) for name in self.fleet.hosts_of(holder)):
                return interface.UNCLEAR, ""  # it may have a copy that was not heard of yet
            return fleet_slices.standing_of_target(self.fleet, holder)
        return fleet_slices.standing(self.fleet, copies[0].host) if copies else (interface.UNCLEAR, "")

    def owner(self, snapshot: Snapshot) -> str:
        """The target that the run was handed to, where the newest copy that is seen is not there: one that was left
        behind. Empty where it is where it belongs."""
        run = next(iter(snapshot.copies(self.run_id)), None)
        if run is None or run.running or run.fence is None or run.fence.sealed_step is None:
            return ""  # one that never moved belongs where it is, under whatever name
        holder = run.fence.owner
        known = self.fleet.hosts_of(holder) if holder in self.fleet.target_names else ()
        return "" if run.host in known else holder

    def _failed(self, run: RunView, snapshot: Snapshot) -> Verdict | None:
        """`judge_failed` of a run on several hosts; None of any other, or where they cannot be asked."""
        host = snapshot.host(run.host)
        if host is None or host.link != LIVE:
            return None
        try:
            ranks = ranks_of(self.hosts, run.host, run.run_id, run.attempt)
            if len(ranks) < 2:
                return None
            seen = look_at_ranks(self.hosts, ranks, run.run_id, run.attempt)
        except MidstreamError:
            return None
        return judge_failed(seen, lambda host: fleet_slices.standing(self.fleet, host))

    def _under_way(self) -> bool:
        """A migration of this run is open: its own process, or a person, has the run in its hands."""
        mine = [view for view in list_migrations(self.fleet) if view.plan.run_id == self.run_id and view.open]
        for view in mine:
            if view.state != model.RUNNING:
                self._once(
                    notify.NEEDS_YOU,
                    f"migration {view.migration} is {view.state}: midstream --continue {view.migration}, or --rollback",
                )
        return bool(mine)

    def _move(self, run: RunView, verdict: Verdict) -> None:
        """Move the run to the first target that takes it. Raises NEEDS_YOU as MidstreamError where none does."""
        refused = []
        store = self._store(run) if verdict.lost else ""
        for target in self.targets:
            if not store and run.host in self.fleet.hosts_of(target):
                continue
            if self.tries < 1:
                break
            try:
                plan = self._plan(self._request(run, verdict, target, store), store)
            except (HostError, MidstreamError) as error:
                refused.append(f"{target}: {error}")
                continue
            self.tries -= 1
            migration = migration_process.start(self.fleet, plan)
            self.tell({"event": "guard", "kind": "moving", "run": self.run_id, "to": target, "migration": migration})
            for event in migration_process.follow(migration):
                if event.event == "result":
                    if event.detail.get("ok"):
                        self._say(notify.FINISHED, f"moved to {target} (migration {migration})", migration=migration)
                        return
                    refused.append(f"{target}: {event.message}")
            if verdict.kind == GOING and fleet_slices.standing(self.fleet, run.host)[0] == interface.PREEMPTED:
                return  # it went in the middle of that: what it left is looked at anew
        spent = "; the tries are spent" if self.tries < 1 else ""
        message = f"{verdict.reason}, and no target took the run{spent}: {'; '.join(refused) or 'none is left'}"
        self._say(notify.NEEDS_YOU, message)
        raise MidstreamError(message, f"midstream --migrate {self.run_id} --to TARGET")

    def _request(self, run: RunView, verdict: Verdict, target: str, store: str) -> model.Request:
        """What is asked for; with a ``store``, from what lies there. MidstreamError where nothing can be."""
        if verdict.kind == GOING:
            return model.Request(self.run_id, target, mode=model.WARM)
        asked = model.Request(self.run_id, target, mode=model.COLD, checkpoint="latest")
        if not store:
            return asked
        return replace(asked, source=self._left_behind(run, target), source_lost=True)

    def _store(self, run: RunView) -> str:
        """The bucket in which a run whose machines are gone kept its checkpoints; empty where it kept them itself."""
        holder = run.fence.owner if run.fence is not None else ""
        return run.store or self.fleet.store_of_target(holder)

    def _left_behind(self, run: RunView, target: str) -> str:
        """The host of a copy that was left behind where the run came from, which knows its configuration and history:
        not one of what is gone, and ``target``'s own only where no other has one."""
        snapshot = self.watch.snapshot()
        mine = fleet_slices.target_of_host(self.fleet, run.host)
        gone = mine[1].hosts if mine is not None else ()
        live = {host.name for host in snapshot.hosts if host.link == LIVE}
        found = [copy for copy in snapshot.copies(self.run_id) if copy.host in live - {*gone} and not copy.running]
        if not found:
            raise MidstreamError(
                f"no other host that answers has a copy of {self.run_id}, and a bucket holds its checkpoints alone",
                "a host that the run was on before, in the fleet file",
            )
        there = self.fleet.hosts_of(target)
        return min(found, key=lambda copy: copy.host in there).host

    def check_consent(self, run: RunView) -> None:
        """Refuse to guard a run whose config asks for a person's consent when it moves: then nobody may be there.
        Where its host does not answer, the move is what is refused."""
        try:
            source = self.hosts.get(run.host)
            config = host_files.training_config(source, self.run_id)
            store = source.call("verify.tree.store_of", root=source.root, run_id=self.run_id)
        except HostError:
            return
        for target in self.targets:
            for line in check_config(config, run.host, target, (store.rstrip("/"),) if store else (), {}):
                raise MidstreamError(line, "say --yes to agree", Exit.REFUSED)

    def _plan(self, request: model.Request, store: str) -> model.Plan:
        """A plan that its preflight takes. MidstreamError."""
        plan = planning.make_plan(self.fleet, self.hosts, self.watch.snapshot(), request)
        if store and plan.source_store != store:
            raise MidstreamError(f"its checkpoints in {store} are not to be had, and what {plan.source} has is older")
        if plan.consent and not self.agreed:  # nobody is here to agree
            raise MidstreamError(plan.consent[0], "--guard with --yes agrees to it, and --migrate shows it")
        for check in preflight.run_checks(self.fleet, self.hosts, plan):
            if check.state == model.FAIL:
                raise MidstreamError(f"{check.name}: {check.detail}", check.hint)
        return plan

    def _symptoms(self, run: RunView | None) -> None:
        if run is None:
            return
        host = self.watch.snapshot().host(run.host)
        skew = host.machine.clock_skew if host is not None and host.machine is not None else 0.0
        for symptom in symptoms(run, time.time() + skew):
            self._once(symptom.kind, f"{run.run_id} on {run.host}: {symptom.message}", once=symptom.kind)

    def _once(self, kind: str, message: str, once: str = "") -> None:
        if (once or message) not in self._told:
            self._told.add(once or message)
            self._say(kind, message)

    def _say(self, kind: str, message: str, **more: Any) -> None:
        self.tell({"event": "guard", "kind": kind, "run": self.run_id, "message": message, **more})
