"""Rounding of an imported run's parameters, where the user requests it."""

from __future__ import annotations

import dataclasses

from midstream_core.precision import precision_of
from midstream_engine.interop.foreign_run import ForeignRun

_MODEL = "model/"


def with_parameters(adopted: ForeignRun, dtype: str) -> ForeignRun:
    """Return the run with its parameters in ``dtype``.

    The optimizer's state and the compute precision stay.

    Wider parameters are rounded to the nearest number when they are read.
    """
    trainer = adopted.mapping["trainer"]
    precision = precision_of(trainer.get("mp"))
    if precision.parameters == dtype:
        return adopted
    arrays = [
        dataclasses.replace(array, dtype=dtype, rounds=True) if array.name.startswith(_MODEL) else array
        for array in adopted.arrays
    ]
    mp = str(precision.with_parameters(dtype))
    notes = [*adopted.notes, f"parameters are cast from {precision.parameters} to {dtype}, as --cast-parameters says"]
    return dataclasses.replace(
        adopted,
        mapping={**adopted.mapping, "trainer": {**trainer, "mp": mp}},
        arrays=arrays,
        notes=notes,
        stamp=[*adopted.stamp, f"parameters in {dtype}"],
    )
