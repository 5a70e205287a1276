"""Checks of targets, plans and certificates as lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from midstream.json_events.fleet_events import CheckEvent
from midstream.output import Output

if TYPE_CHECKING:
    from midstream.check.check_result import Check

SIGNS = {"pass": "ok  ", "warn": "warn", "fail": "FAIL"}


def print_check(check: Check, output: Output) -> None:
    """Print one check, with its hint."""
    where = f"{check.host}: " if check.host else ""
    hint = [f"      -> {check.hint}"] if check.hint else []
    output.event(CheckEvent(**vars(check)), [f"{SIGNS[check.state]}  {where}{check.name}: {check.detail}", *hint])
