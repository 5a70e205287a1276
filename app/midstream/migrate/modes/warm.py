"""Warm: a standby compiles and waits on the target; then one short stop-and-copy."""

from __future__ import annotations

from midstream.migrate.modes.mode import Mode

WARM = "warm"


class Warm(Mode):
    name = WARM
    sequence = "the target compiles first; then stop, copy, start"
