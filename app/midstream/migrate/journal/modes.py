"""Modes of a migration: cold (stop and copy), warm (standby), live (replica)."""

from __future__ import annotations

COLD, WARM, LIVE = "cold", "warm", "live"
MODES = (WARM, COLD, LIVE)
