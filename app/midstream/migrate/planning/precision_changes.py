"""Precision of a run's computation before and after a migration."""

from __future__ import annotations

from collections.abc import Mapping

from midstream.migrate.journal.plan import MATMUL_PRECISION, PRECISION, Change
from midstream_core.json_types import JsonObject
from midstream_core.precision import HIGHEST, rounds_products

Settings = tuple[str, str]  # ``trainer.mp`` and ``trainer.matmul_precision``
_NOTE = "requested: losses agree within the tolerance of the lower precision"


def precision_changes(trainer: JsonObject, flags: Mapping[str, str]) -> tuple[Change, ...]:
    """Return the precision of the computation, before and after the migration.

    Where products round float32 numbers before or after it, also return the precision of products.

    Args:
        trainer: The section of the run's configuration.
        flags: Flags of the engine by name (``trainer.mp``), which replace values of the configuration.
    """
    before, after = before_and_after(trainer, flags)
    computation = Change(PRECISION, before[0], after[0], _NOTE)
    if not rounds_products(*before) and not rounds_products(*after):
        return (computation,)
    return computation, Change(MATMUL_PRECISION, before[1], after[1], _NOTE)


def before_and_after(trainer: JsonObject, flags: Mapping[str, str]) -> tuple[Settings, Settings]:
    """Return the settings of the run's configuration, and those with ``flags``."""
    before = str(trainer.get("mp") or "f32"), str(trainer.get("matmul_precision") or HIGHEST)
    return before, (flags.get("trainer.mp") or before[0], flags.get("trainer.matmul_precision") or before[1])
