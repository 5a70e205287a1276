"""Put each known fault back, one after the other, and write how soon the simulation finds it."""

from __future__ import annotations

import os
import pickle
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from simulation import faults, found_faults
from simulation.known_faults import KNOWN
from simulation.machines import REAL_EXIT
from simulation.runner import children_seconds, fork_schedule
from simulation.scheduler import REAL_CLOCK
from simulation.schedules import CALLS, CLUSTER, GROUP, Schedule
from simulation.shrink import broken_invariant, replay_flags

LIMIT = 300.0  # seconds of a core for one fault
INVARIANTS = ("BrokenError", "EndlessWaitError")
assert found_faults.__name__, "its import adds faults to `KNOWN`"
HEAD = """# Known faults that simulations find

After this page you know which faults of the project's history simulations find again, and how soon.

Each was put back into the program, alone, and schedules were run until one broke an invariant that it keeps without the
fault, with at most {limit:.0f} s of a core for each. Schedules are drawn from seed 0 on, with the scenario, mode, place and kinds of
faults that the table names. `make simulate ARGS="--known-all FAULT..."` writes these lines; `make simulate ARGS="--known FAULT"` prints
and shrinks the first story.

Left out, because what surrounds them has changed (read in the code, not proven): a process of another boot that counts as ended starts no
second engine on a shared root, since the run's records name the host that owns it, and a job's heartbeat counts too. A superseded start that
ignores newer ones deletes nothing that is needed, since retention always keeps the newest checkpoint. Two jobs of one attempt are not two engines,
since a rollback writes the fence first.

| fault | what it was | schedules | number of them | seconds of a core | schedule that finds it |
| --- | --- | --- | --- | --- | --- |
"""  # noqa: E501


@dataclass(frozen=True)
class Search:
    """Schedules in which a fault is looked for: what is not given is drawn.

    ``kinds``: kinds of the drawn faults. ``late``: they are in the second half of the migration's calls.
    """

    scenario: str = ""
    mode: str = ""
    place: str = ""
    kinds: tuple[str, ...] = ()
    late: bool = False

    def schedules(self) -> Iterator[Schedule]:
        """Yield the schedules of all seeds."""
        for seed in count():
            struck = None
            if self.kinds:
                dice = random.Random(f"search {seed}")
                calls = CALLS[self.mode or "cold"] // (2 if self.late else 1)
                drawn = faults.draw(dice, calls, kinds=self.kinds)
                struck = tuple(replace(fault, call=fault.call + calls * self.late) for fault in drawn)
            yield Schedule(seed, self.scenario, self.mode, struck, self.place)

    def words(self) -> str:
        """Return in words what is given."""
        kinds = " or ".join(self.kinds) + (" in the second half of the calls" if self.late else "")
        given = ", ".join(filter(None, (self.scenario, self.mode, self.place, kinds)))
        return given or "all"


KILLED = ("kill process after", "kill before line")
FAILING = Search("patient", "cold", "disk", ("kill engine later", "crash target later"), late=True)
REQUEUED_BY_SLURM = Search("patient", "cold", CLUSTER, ("requeue jobs later", "preempt jobs later"), late=True)
REQUEUED = Search("patient", "cold", CLUSTER, ("lose nodes", "lose nodes after save"))
FROZEN = Search("copied state", "cold", "disk", ("freeze process",))
RESTORED = Search("patient", "warm", "disk", ("keep state", "restore state"))
COPIED = Search("copied state", "cold", "disk", ("freeze process",), late=True)
SEARCHES = {
    "any_fence_accepts": REQUEUED,
    "superseded_start_goes_on": REQUEUED,
    "older_checkpoint_is_restored": REQUEUED_BY_SLURM,
    "start_numbers_do_not_rise": REQUEUED,
    "present_attempt_is_not_adopted": Search("migrate", "cold", "disk", KILLED, late=True),
    "start_is_repeated": Search("migrate", "cold", "disk", ("answer lost",), late=True),
    "relaunch_runs_once": FAILING,
    "lost_contact_rolls_back": Search("patient", "warm", "disk", ("cut target",), late=True),
    "standby_is_taken_for_the_run": Search("migrate", "warm", "disk", KILLED, late=True),
    "fence_is_not_durable": Search("migrate", "cold", "disk", ("crash source", "crash target"), late=True),
    "run_passes_on_unnoticed": COPIED,
    "restart_falls_back": FAILING,
    "certified_run_is_rolled_back": FAILING,
    "two_processes_of_a_migration": Search("two at once", "warm", "disk", ("freeze process", "answer lost")),
    "failed_node_ends_its_engine": Search("patient", "cold", CLUSTER, ("isolate nodes later",), late=True),
    "own_full_disk_rolls_back": Search("patient", "cold", "disk", ("fill operator",)),
    "failure_gives_up_steps": Search("patient", "warm", "disk", ("cut source", "fill source"), late=True),
    "late_command_seals": FROZEN,
    "seal_beside_a_running_engine": Search("migrate", "cold", "disk", ("freeze process",)),
    "released_lock_is_acquired": FROZEN,
    "sealed_checkpoint_is_pruned": Search("roll back late", "warm", "bucket", ("kill process",)),
    "earlier_fence_is_left": Search("roll back", "cold", "bucket", ("snapshot source",)),
    "accounting_comes_first": REQUEUED_BY_SLURM,
    "requeued_job_has_ended": REQUEUED_BY_SLURM,
    "migration_lock_is_shared": Search("two at once"),
    "rollback_leaves_nothing_running": Search("roll back"),
    "rollback_leaves_target": Search("roll back"),
    "fence_goes_back": COPIED,
    "suspended_process_starts_the_target": COPIED,
    "source_permits_any_process": COPIED,
    "silence_of_the_journal": RESTORED,
    "restored_journal_is_believed": RESTORED,
    "largest_epoch_is_believed": Search("liar"),
    "numbered_start_commits_without_fence": Search("migrate", "warm", CLUSTER, ("snapshot target",)),
    "incomplete_rollback_gives_up_steps": Search("migrate", "warm", CLUSTER, ("fill target",), late=True),
    "superseded_start_ends_the_job": Search("and back", "warm", CLUSTER, ("lose nodes",), late=True),
    "unstarted_migration_is_undetermined": Search("and back", "warm", GROUP, ("snapshot target",), late=True),
    "restored_source_has_nothing_to_undo": Search("roll back", "cold", "disk", ("snapshot source",)),
    "restored_source_is_sealed_earlier": Search("migrate", "warm", GROUP, ("snapshot source",)),
    "restored_lock_has_started_nothing": Search("roll back", "warm", GROUP, ("snapshot source",), late=True),
    "pin_expires_by_own_clock": Search("roll back late", "warm", "bucket", ("crash target",), late=True),
    "damaged_status_is_awaited": Search("and back", "cold", "disk", ("crash target",)),
    "returned_run_is_completed": Search("copied state", "cold", "disk", ("freeze process",), late=True),
}


def schedules_of(name: str) -> Iterator[Schedule]:
    """Yield the schedules that a fault is looked for in."""
    return SEARCHES.get(name, Search()).schedules()


@dataclass(frozen=True)
class Finding:
    """Search for a fault. ``schedule`` is None where none was found."""

    name: str
    schedules: int
    seconds: float
    schedule: Schedule | None = None
    invariant: str = ""

    def row(self) -> str:
        """Return the row of the table."""
        described = (KNOWN[self.name].__doc__ or "").strip().splitlines()[0]
        source = SEARCHES.get(self.name, Search()).words()
        shown = "**not found**"
        if self.schedule is not None:
            shown = f"`SEED={self.schedule.seed}` `{replay_flags(self.schedule)}`"
        cells = f"`{self.name}`", described, source, self.schedules, f"{self.seconds:.1f}", shown
        return f"| {' | '.join(map(str, cells))} |"


def find(name: str, directory: str, limit: float) -> Finding:
    """Run schedules until one breaks an invariant with the fault, and none without it."""
    first, spent = 0, 0.0
    while True:
        finding = _search_in_child(name, directory, first, limit - spent)
        spent += finding.seconds
        if finding.schedule is None or not fork_schedule(finding.schedule, directory).broken:
            return replace(finding, seconds=spent)
        print(f"{finding.schedule.story()} breaks an invariant without the fault too", flush=True)
        first = finding.schedules


def _search_in_child(name: str, directory: str, first: int, limit: float) -> Finding:
    """Put a fault back in a child of this process, and run schedules there from a number on."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        KNOWN[name]()
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(pickle.dumps(_search(name, directory, first, limit)))
        REAL_EXIT(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        data = pipe.read()
    os.waitpid(child, 0)
    return pickle.loads(data)


def _search(name: str, directory: str, first: int, limit: float) -> Finding:
    begun = children_seconds()
    for number, schedule in enumerate(schedules_of(name)):
        if number < first:
            continue
        outcome = fork_schedule(schedule, directory)
        spent, invariant = children_seconds() - begun, broken_invariant(outcome)
        if invariant.startswith(INVARIANTS):
            return Finding(name, number + 1, spent, outcome.schedule, invariant)
        if spent > limit:
            return Finding(name, number + 1, spent)
    raise AssertionError("seeds have no end")


def findings(names: Iterable[str], directory: str, limit: float) -> Iterator[Finding]:
    """Yield how soon each fault is found, and print it."""
    for name in names:
        began = REAL_CLOCK()
        finding = find(name, directory, limit)
        print(f"{finding.row()}  ({REAL_CLOCK() - began:.0f} s)", flush=True)
        yield finding


def write_page(found: Iterable[Finding], page: Path, limit: float) -> None:
    """Write the page of the docs. Rows of other known faults stay."""
    before = page.read_text().splitlines() if page.exists() else []
    rows = {line.split("`")[1]: line for line in before if line.startswith("| `")}
    rows |= {finding.name: finding.row() for finding in found}
    page.write_text(HEAD.format(limit=limit) + "".join(f"{rows[name]}\n" for name in sorted(KNOWN) if name in rows))
