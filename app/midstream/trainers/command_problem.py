"""Check of a trainer's command: it may not fix what midstream decides.

midstream decides processes, their numbers and addresses, and devices.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from midstream.trainers.registry import TRAINERS
from midstream_core.visible_devices import VISIBLE
from midstream_host.driver.run_file import DISTRIBUTED, PLACEHOLDER, SCRIPT, distributed_name

DEVICES_OF_HOST = "devices: [0, 1] of the host in the fleet file chooses its GPUs; devices: N here, how many are used"


@dataclass(frozen=True)
class CommandProblem:
    """Fault of a command, and what to write instead."""

    what: str
    hint: str


def command_problem(words: Sequence[str]) -> CommandProblem | None:
    """Return what a command fixes although midstream decides it, else None."""
    for word in words:
        fixed = distributed_name(word)
        if fixed is not None:
            hint = "{master} {port} {rank} {devices} {nodes}"
            return CommandProblem(f"{word!r} fixes {fixed}, which midstream writes", hint)
        if f"{VISIBLE}=" in word:
            return CommandProblem(f"it sets {VISIBLE}, and each host has its own", DEVICES_OF_HOST)
    for flag, value in pairwise(words):
        name = flag.lstrip("-").replace("-", "_").upper()
        if flag.startswith("-") and name in DISTRIBUTED and not PLACEHOLDER.search(value):
            what = f"{flag} {value} fixes {name}, which midstream writes"
            return CommandProblem(what, f"{flag} {_placeholder_for(name)}")
    return _launcher_problem([name for word in words for name in _shell_words(word)])


def _launcher_problem(words: Sequence[str]) -> CommandProblem | None:
    """Return what is wrong with the number of processes of a launcher of some trainer."""
    names = [word.rpartition("/")[2] for word in words]
    for launcher in (launcher for trainer in TRAINERS.values() for launcher in trainer.launchers):
        size = len(launcher.program)
        begin = next((at for at in range(len(names)) if tuple(names[at : at + size]) == launcher.program), None)
        if begin is None:
            continue
        program, hint = " ".join(launcher.program), f"{launcher.flag} {launcher.placeholder}"
        value = _value_of(launcher.flag, words[begin + size :])
        if value is None:
            return CommandProblem(f"{program} starts as many processes as it finds GPUs or its settings say", hint)
        if not PLACEHOLDER.search(value):
            return CommandProblem(
                f"{launcher.flag} {value} fixes the number of processes, which midstream decides", hint
            )
    return None


def _value_of(flag: str, words: Sequence[str]) -> str | None:
    for word, following in pairwise([*words, ""]):
        name, equals, value = word.partition("=")
        if name.replace("-", "_") == flag.replace("-", "_"):
            return value if equals else following
    return None


def _shell_words(word: str) -> list[str]:
    """Return the words of a script, or the word itself."""
    if not SCRIPT.search(word):
        return [word]
    try:
        return shlex.split(word)
    except ValueError:
        return word.split()


def _placeholder_for(name: str) -> str:
    return {"MASTER_ADDR": "{master}", "MASTER_PORT": "{port}", "NODE_RANK": "{rank}", "WORLD_SIZE": "{world}"}.get(
        name, "{devices}"
    )
