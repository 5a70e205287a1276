"""Operators: they give the commands that midstream prints, until the run trains on one machine."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from pathlib import Path

from simulation import faults, hints
from simulation.invariants import ANY, BrokenError
from simulation.world import RUN, World

ATTEMPTS = 14  # commands that an operator gives until the run is somewhere
ENDED = ("completed", "rolled back", "moved on")
PATIENCE = 2  # times that a command is given before one that gives up steps
OLDER = re.compile(r"shows step (\d+) of .*later steps would be given up")
UNCHANGED = (2, 3)  # exit codes of commands that refused, and changed nothing
STATES = ("state", "state.copied")


def migrations(world: World, state: str = "state") -> list[str]:
    """Return the migrations of a state directory, oldest first."""
    directory = Path(world.directory, state, "migrations")
    return sorted(path.name for path in directory.iterdir() if path.is_dir()) if directory.is_dir() else []


def is_open(world: World, state: str = "state") -> bool:
    """Return whether the newest migration of a state directory is open, by its journal."""
    names = migrations(world, state)
    if not names:
        return False
    journal = Path(world.directory, state, "migrations", names[-1], "journal.jsonl")
    results = [line for line in journal.read_bytes().splitlines() if b'"result"' in line] if journal.is_file() else []
    last = _parsed(results[-1]) if results else {}
    return last.get("outcome") not in ENDED


def _parsed(line: bytes) -> dict[str, object]:
    try:
        return json.loads(line)
    except ValueError:
        return {}


def is_settled(world: World) -> bool:
    """Return whether the run trains on one machine that has its fence, and no migration is open."""
    trains = world.trains()
    return len(trains) == 1 and not is_open(world) and world.fence(trains[0]) is not None


def gives_up(command: list[str]) -> bool:
    """Return whether a command says that steps may be given up."""
    return command[0] == "--rollback" or "--source-lost" in command


def settle(world: World, dice: random.Random, consents: list[int]) -> None:
    """Give the commands that were printed, until the run trains on one machine and no migration is open."""
    given: Counter[str] = Counter()
    vain: Counter[str] = Counter()  # of those, given while nothing failed
    for trial in range(ATTEMPTS):
        world.run_for(dice.choice([1.0, 30.0, 200.0]) if trial < 3 else max(faults.OUTAGES))
        working = list(world.machines["operator"].processes.values())
        processes = [process for process in working if process.name.startswith("migration")]
        if processes:
            world.run_until(lambda processes=processes: all(process.exit_code is not None for process in processes))
        if is_settled(world):
            return
        state, command = _next(world, given, vain)
        given[f"{state} {hints.line(command)}"] += 1
        if gives_up(command):
            consents.append(ANY)
        healthy, struck = world.healthy(), len(world.struck)
        world.wait(world.command(*hints.agreed(command), state=state))
        vain[f"{state} {hints.line(command)}"] += healthy and not world.troubled and len(world.struck) == struck
        if "the damaged file is kept as" in world.said[-1][2]:
            vain.clear()  # it is another damaged file that the next command may name
        consents += map(int, OLDER.findall("\n".join(text for _, _, text in world.said)))
    raise BrokenError(f"after {ATTEMPTS} commands the run trains on {world.trains()}, open: {is_open(world)}")


def _next(world: World, given: Counter[str], vain: Counter[str]) -> tuple[str, list[str]]:
    """Return the next command, and the state directory of its operator."""
    _, code, text = world.said[-1] if world.said else ("", 0, "")
    state = Path(world.answered[-1].environment["MIDSTREAM_STATE"]).name if world.answered else "state"
    listed = hints.commands(text) if code > 0 else []
    if listed:  # a rollback gives up steps: only where nothing else is left

        def order(command: list[str]) -> tuple[bool, int]:
            count = given[f"{state} {hints.line(command)}"]
            return gives_up(command), count

        others = [command for command in listed if not gives_up(command)]
        if others and not world.restored and all(vain[f"{state} {hints.line(one)}"] >= PATIENCE for one in others):
            raise BrokenError(f"nothing fails, and what was printed brings nothing on: {hints.last_message(text)}")
        if all(given[f"{state} {hints.line(command)}"] >= PATIENCE for command in others):
            listed = [command for command in listed if gives_up(command)] or listed
        return state, min(listed, key=order)
    unfinished = next((state for state in STATES if is_open(world, state)), "")
    if unfinished:
        return unfinished, ["--continue", migrations(world, unfinished)[-1]]
    trains = world.trains()
    status = world.status(trains[0]) if len(trains) == 1 else None
    if status is not None and (repairs := hints.commands(status.message)):
        return "state", repairs[0]
    named = hints.COMMAND.search(hints.last_message(text))  # one that shows the reason, such as a log
    if code > 0 and code not in UNCHANGED and named is None and not (world.troubled or world.trained):
        raise BrokenError(f"a command printed no line that brings the run on: {world.said[-1]}")
    return "state", ["--restart", RUN]
