"""Stages of a migration and phases of its downtime: estimated, measured, shown."""

from __future__ import annotations

from collections.abc import Mapping

from midstream.format import duration as shown

IMPORT = "import"  # another trainer's checkpoint becomes a run
INSTALL = "install"  # engine and environment on the target
DATA = "data"  # copy of the token caches
CHECKPOINT = "checkpoint"  # copy of an existing checkpoint, while the source trains
START = "start"  # of the standby, until it compiles
COMPILE = "compile"
REHEARSE = "rehearse"  # restore and some updates on the target
REPLAY = "replay"  # of a live migration, until the replica has caught up
DOWNTIME = "downtime"  # neither side trains
CERTIFY = "certify"
HEALTHY = "healthy steps"  # until the source is retired
STAGES = (IMPORT, INSTALL, DATA, CHECKPOINT, START, COMPILE, REHEARSE, REPLAY, DOWNTIME, CERTIFY, HEALTHY)

# Phases of the downtime, in order: keys of the downtime report.
DOWNTIME_PHASES = ("quiesce", "save", "copy", "verify", "provision", "install", "compile", "restore", "first_step")

Durations = Mapping[str, float | None]  # seconds by stage, in the order of STAGES; None: unknown
SHORT = 0.05  # seconds; shorter stages are left out of a list


def shown_stage(name: str) -> str:
    """Return a stage as users read it.

    `DOWNTIME` begins with the command to stop and ends when the target's first step is seen: it is longer than the
    downtime, which has one number, and is shown as ``takeover``.
    """
    return "takeover" if name == DOWNTIME else name


def known_seconds(durations: Durations) -> float:
    """Return the sum of the known durations."""
    return sum(seconds for seconds in durations.values() if seconds is not None)


def unknown_stages(durations: Durations) -> tuple[str, ...]:
    """Return the stages of unknown duration."""
    return tuple(name for name, seconds in durations.items() if seconds is None)


def total_text(durations: Durations) -> str:
    """Return the total of the durations as text.

    Examples: ``about 3m20``, ``at least 1m05, with install unknown``, ``unknown``.
    """
    unknown, seconds = unknown_stages(durations), known_seconds(durations)
    if not unknown:
        return f"about {shown(seconds)}"
    if seconds < SHORT:
        return "unknown"
    return f"at least {shown(seconds)}, with {', '.join(unknown)} unknown"


def stages_text(durations: Durations) -> str:
    """Return the known stages: ``install 1m30, compile 35s``."""
    stages = {name: seconds for name, seconds in durations.items() if seconds is not None and seconds >= SHORT}
    return ", ".join(f"{name} {shown(seconds)}" for name, seconds in stages.items())
