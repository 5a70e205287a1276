"""The modes of a migration, one file each, in the order in which users see them."""

from __future__ import annotations

from collections.abc import Mapping

from midstream.errors import UsageError
from midstream.migrate.modes.cold import COLD, Cold
from midstream.migrate.modes.live import LIVE, Live
from midstream.migrate.modes.mode import Mode
from midstream.migrate.modes.warm import WARM, Warm

MODES: Mapping[str, Mode] = {mode.name: mode for mode in (Warm(), Cold(), Live())}


def mode_of(name: str) -> Mode:
    """Return a mode by its name. UsageError if there is none."""
    if name not in MODES:
        raise UsageError(f"mode {name!r} is not known", f"the modes are {', '.join(MODES)}")
    return MODES[name]


def present_mode(name: str, fallback_reason: str | None) -> Mode:
    """Return the mode in which a migration continues.

    Args:
        name: The mode of its plan.
        fallback_reason: Why its replica could not take over; None: no reason.
    """
    mode = mode_of(name)
    return mode_of(mode.fallback) if fallback_reason and mode.fallback else mode


__all__ = ["COLD", "LIVE", "MODES", "WARM", "Mode", "mode_of", "present_mode"]
