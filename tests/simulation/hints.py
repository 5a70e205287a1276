"""Commands that midstream prints for its user, as an operator follows them."""

from __future__ import annotations

import re
import shlex

COMMAND = re.compile(r"midstream(?: --fleet \S+)? (--[a-z-]+ [^;,()\n]*)")
VALUES = frozenset({"--on", "--to", "--mode", "--from"})  # flags that a value follows
SHOWS = frozenset(
    {"--status", "--checkpoints", "--doctor", "--log", "--diff", "--verify", "--clean", "--check", "--help"}
)


def last_message(text: str) -> str:
    """Return the line of an output that says how its command ended."""
    lines = text.strip().splitlines()
    messages = [line for line in lines if re.match(r"midstream:|r:|\S+-r-[0-9a-f]{4}:", line)]
    return (messages or lines or [""])[-1]


def commands(text: str) -> list[list[str]]:
    """Return the commands in an output's last message that change something, in order, each once."""
    listed: list[list[str]] = []
    for match in COMMAND.finditer(last_message(text)):
        words = match.group(1).replace("'", " ").replace("TARGET", "two").split()
        command, rest = words[:2], words[2:]
        while rest and rest[0].startswith("--"):
            size = 2 if rest[0] in VALUES else 1
            command, rest = command + rest[:size], rest[size:]
        if command[0] not in SHOWS and command not in listed and not command[-1].isupper():
            listed.append(command)
    return listed


def agreed(command: list[str]) -> list[str]:
    """Return a command with its user's consent, where it requires one."""
    requires = command[0] in ("--rollback", "--repair", "--migrate", "--adopt", "--launch", "--restart")
    return [*command, "--yes"] if requires and "--yes" not in command else command


def line(command: list[str]) -> str:
    return shlex.join(command)
