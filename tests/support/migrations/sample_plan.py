"""A plan and a seal for tests that need no host."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from midstream.migrate.journal.facts import Sealed
from midstream.migrate.journal.plan import Change, Estimate, Identity, Plan, Route, Shape
from midstream_core import records

PLAN = Plan(
    identity=Identity("m", "r", "cold", source_epoch=1, epoch=2),
    shape=Shape(2, 4, 8, 2, 1, changes=(Change("precision", "f32", "f32"),)),
    route=Route("a", "training", 9, "b", "b"),
    estimate=Estimate(checkpoint_bytes=1),
)

FENCE = records.Fence(1, "a").sealed(2, "b", 7)
SEALED = Sealed(step=7, checkpoint="step-7-a001", root_digest="d" * 64, attempt=1, fence=FENCE)


def changed(plan: Plan, **changes: Any) -> Plan:
    """Return the plan with changed fields, in whichever of its parts they are."""
    for name, value in changes.items():
        [part] = [each.name for each in fields(plan) if hasattr(getattr(plan, each.name), name)]
        plan = replace(plan, **{part: replace(getattr(plan, part), **{name: value})})
    return plan
