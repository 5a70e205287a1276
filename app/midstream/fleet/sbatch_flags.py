"""Flags of sbatch by their full names."""

from __future__ import annotations

from collections.abc import Sequence

# Those whose values midstream reads or refuses, and the others that begin like them. sbatch accepts a beginning that
# only one of its flags has: ``--sig`` is ``--signal``.
NAMES = (
    "account", "acctg-freq", "array", "signal", "nodes", "nodelist", "nodefile", "no-kill", "no-requeue",
    "ntasks", "ntasks-per-core", "ntasks-per-gpu", "ntasks-per-node", "ntasks-per-socket", "ntasks-per-tres",
    "network", "nice", "gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task", "gpu-bind", "gpu-freq", "gres",
    "gres-flags", "get-user-env", "gid", "time", "time-min", "threads-per-core", "thread-spec", "tmp", "test-only",
    "tasks-per-node", "tres-bind", "tres-per-task", "clusters", "cluster", "cluster-constraint", "wait",
    "wait-all-nodes", "wckey", "wrap",
)  # fmt: skip
SHORT = {"-N": "nodes", "-n": "ntasks", "-G": "gpus", "-t": "time", "-a": "array", "-W": "wait", "-M": "clusters"}
ALIASES = {"tasks-per-node": "ntasks-per-node", "cluster": "clusters"}


def full_name(name: str) -> str:
    """Return the flag that a name or its beginning stands for; else the name."""
    if name not in NAMES:
        matches = [flag for flag in NAMES if flag.startswith(name)]
        name = matches[0] if len(matches) == 1 and name else name
    return ALIASES.get(name, name)


def sbatch_flags(words: Sequence[str]) -> dict[str, str]:
    """Return sbatch's flags by long name; the last of several counts."""
    flags: dict[str, str] = {}
    pending = ""
    for word in words:
        if word.startswith("--"):
            key, equals, value = word[2:].partition("=")
            key = full_name(key)
            flags[key] = value
            pending = "" if equals else key
        elif word[:2] in SHORT:
            key = SHORT[word[:2]]
            flags[key] = word[2:].lstrip("=")
            pending = "" if word[2:] else key
        elif pending:
            flags[pending], pending = word, ""
    return flags
