"""Shrink a schedule that breaks an invariant, and write the command that replays it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import astuple, fields, replace

from simulation import schedules
from simulation.faults import OUTAGES, Fault
from simulation.schedules import Outcome, Schedule

TRIALS = 60  # schedules that are run to shrink one
# Fields of a schedule that are drawn by name, with their values, the simplest one first.
DRAWN: dict[str, tuple[str, ...]] = {
    field.name: tuple(dict.fromkeys(getattr(schedules, f"{field.name.upper()}S")))
    for field in fields(Schedule)
    if field.name not in ("seed", "faults")
}


def broken_invariant(outcome: Outcome) -> str:
    """Return what a schedule breaks, without the values of this schedule. Empty: nothing."""
    lines = outcome.broken.strip().splitlines()
    return re.sub(r"\d+(\.\d+)?|\[.*\]|\w+\(.*|/[^ ]*", "#", lines[-1])[:100] if lines else ""


def shrink(outcome: Outcome, run: Callable[[Schedule], Outcome], trials: int = TRIALS) -> Outcome:
    """Return the smallest schedule reached that still breaks the same invariant.

    Args:
        outcome: What a schedule has broken.
        run: Runs a schedule.
        trials: Schedules to run at most.
    """
    invariant = broken_invariant(outcome)
    tried = {outcome.schedule}
    smaller = True
    while smaller:
        smaller = False
        for candidate in simpler(outcome.schedule):
            if candidate in tried:
                continue
            if len(tried) > trials:
                return outcome
            tried.add(candidate)
            result = run(candidate)
            if broken_invariant(result) == invariant:
                outcome, smaller = result, True
                break
    return outcome


def simpler(schedule: Schedule) -> Iterator[Schedule]:
    """Yield the schedules that are one change simpler, those that save most first."""
    faults = schedule.faults or ()
    if len(faults) > 1:
        yield replace(schedule, faults=())
    for index in range(len(faults)):
        yield replace(schedule, faults=faults[:index] + faults[index + 1 :])
    for name, values in DRAWN.items():
        for value in values[: values.index(getattr(schedule, name))]:
            yield replace(schedule, **{name: value})
    for index, fault in enumerate(faults):
        for other in _simpler_faults(fault):
            yield replace(schedule, faults=(*faults[:index], other, *faults[index + 1 :]))


def _simpler_faults(fault: Fault) -> Iterator[Fault]:
    for seconds in OUTAGES:
        if seconds < fault.seconds:
            yield replace(fault, seconds=seconds)
    for call in dict.fromkeys([0, fault.call // 2, fault.call * 3 // 4, fault.call - 1]):
        if 0 <= call < fault.call:
            yield replace(fault, call=call)


def faults_text(faults: tuple[Fault, ...]) -> str:
    """Return faults as ``--faults`` reads them: ``12:answer lost:0.0,30:crash target:60.0``."""
    return ",".join(":".join(map(str, astuple(fault))) for fault in faults)


def read_faults(text: str) -> tuple[Fault, ...]:
    """Read `faults_text`."""
    faults = []
    for entry in filter(None, text.split(",")):
        call, kind, *seconds = entry.split(":")
        faults.append(Fault(int(call), kind, *map(float, seconds)))
    return tuple(faults)


def replay_flags(schedule: Schedule) -> str:
    """Return the flags that give a schedule to `simulate.py`, but for its seed."""
    flags = [word for name in DRAWN for word in (f"--{name}", getattr(schedule, name))]
    return shlex.join([*flags, "--faults", faults_text(schedule.faults or ())])


def replay_command(schedule: Schedule, known: str = "") -> str:
    """Return the command that runs a schedule again, with a known fault put back if one is named."""
    flags = replay_flags(schedule) + (f" --known {known}" if known else "")
    return f'make simulate SEED={schedule.seed} ARGS="{flags}"'
