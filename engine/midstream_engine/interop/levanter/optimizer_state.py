"""Levanter's optimizer state: moments, counts, SkipStep's window, norms.

Moments are given by their place; the norms are those that limit updates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from midstream_engine.checkpoint.array_names import LogicalArray
from midstream_engine.interop.errors import ConversionError
from midstream_engine.interop.foreign_run import constant
from midstream_engine.interop.foreign_values import ForeignConfig
from midstream_engine.interop.imported_array import ImportedArray
from midstream_engine.interop.levanter.arrays import StoredArray
from midstream_engine.optim import update_clipping
from midstream_engine.optim.muon import MUON
from midstream_engine.optim.skip_step import SKIP

ROOT = "opt_state/"
_RATES = f"{ROOT}hyperparams/"
_RATE_COUNTS = f"{ROOT}hyperparams_states/"
_SKIP = f"{ROOT}inner_state/_skipstep_"
_OURS = f"optimizer/{SKIP}/"
CLIP = f"optimizer/{update_clipping.CLIP}/"


# Types of optimizers: the name of our part with moments, and the moments. Levanter's part is the first or second of a
# chain: without or with clipping. Muon's is Adam's for the arrays that are no matrices of blocks.
MOMENTS = {
    "adam": ("adam", ("mu", "nu")), "adopt": ("adopt", ("mu", "nu")), "cautious": ("cautious", ("mu", "nu")),
    "lion": ("lion", ("mu",)), "muon": ("adam", ("mu", "nu")),
}  # fmt: skip
_MOMENTUM = f"{ROOT}inner_state/inner_states/muon/inner_state/0/momentum_buffer/"


def moments_place(directory: str, stored: Mapping[str, StoredArray]) -> str:
    """Return the path of the part of the chain that has moments.

    Raises:
        ConversionError: There is none, or more than one.
    """
    places = sorted({name.split("/mu/")[0] + "/" for name in stored if name.startswith(ROOT) and "/mu/" in name})
    if len(places) != 1:
        raise ConversionError(f"{directory}: the optimizer's moments are expected in one part, found in {places}")
    return places[0]


def moments_sources(kind: str, place: str) -> dict[str, str]:
    """Return the prefixes of moments' names: ours to Levanter's.

    Levanter's part of the chain is at ``place``.
    """
    section, moments = MOMENTS[kind]
    sources = {f"optimizer/{section}/{moment}/": f"{place}{moment}/" for moment in moments}
    return {**sources, f"optimizer/{MUON}/momentum/": _MOMENTUM} if kind == MUON else sources


@dataclass(frozen=True)
class Counts:
    """Updates that the schedule has counted, with and without SkipStep's skipped ones."""

    steps: int
    taken: int


def is_count(name: str) -> bool:
    """Return whether an array is a count of updates, or a learning rate.

    A learning rate follows from the count.
    """
    return name.startswith(ROOT) and (name.endswith("/count") or name.startswith(_RATES))


def read_counts(directory: str, stored: Mapping[str, StoredArray], clip: str | None) -> Counts:
    """Return the numbers of updates done.

    ``clip``: that of ``clip_place``, whose count is another.

    Raises:
        ConversionError: Counts differ that are equal in every checkpoint of Levanter's.
    """
    if "step" not in stored or "training_key" not in stored:
        raise ConversionError(f"{directory}: has no step or no training_key")
    counts = {name: int(stored[name].read()) for name in stored if is_count(name) and name.endswith("/count")}
    counts.pop(f"{clip}count", None)
    of_schedule = {name: count for name, count in counts.items() if name == f"{ROOT}count" or _of_rate(name)}
    steps = of_schedule["step"] = int(stored["step"].read())
    of_updates = {name: count for name, count in counts.items() if name not in of_schedule}
    taken = next(iter(of_updates.values()), steps)
    skips = f"{_SKIP}count" in stored
    if set(of_schedule.values()) != {steps} or not set(of_updates.values()) <= {taken}:
        raise ConversionError(f"{directory}: its counts differ: {of_schedule | of_updates}")
    if taken > steps or (taken < steps and not skips):
        raise ConversionError(f"{directory}: its counts differ: {steps} steps, {taken} updates of the optimizer")
    return Counts(steps, taken)


def _of_rate(name: str) -> bool:
    return name.startswith(_RATE_COUNTS)


def never_skips(optimizer: ForeignConfig) -> bool:
    """Return whether Levanter's SkipStep has a window of one update.

    Levanter makes such a window of ``skip_bad_steps: true``.
    """
    return optimizer.get("skip_bad_steps") == 1 and optimizer["skip_bad_steps"] is not True


def skip_step_names(stored: Mapping[str, StoredArray]) -> set[str]:
    """Return the names of the arrays of SkipStep's window."""
    return {name for name in stored if name.startswith(_SKIP)}


def skip_step_arrays(
    directory: str, stored: Mapping[str, StoredArray], expected: Mapping[str, LogicalArray], counts: Counts
) -> list[ImportedArray]:
    """Return SkipStep's window, the number seen, and the number skipped.

    The window has losses and gradient norms [window].

    Levanter counts what it has seen up to the window's length, and keeps the next slot; here the slot is the number
    seen modulo the window.

    Raises:
        ConversionError: The window has another length than in the configuration, or a number that is not finite.
    """
    if f"{_OURS}seen" not in expected:
        return []
    arrays = {name: stored.get(f"{_SKIP}{name}") for name in ("losses", "grad_norms", "count", "current_idx")}
    missing = [f"{_SKIP}{name}" for name, stored in arrays.items() if stored is None]
    if missing:
        raise ConversionError(
            f"{directory}: has no {missing[0]}, which optimizer.skip_bad_steps needs (hint: skip_bad_steps: false)"
        )
    values = {name: stored.read() for name, stored in arrays.items() if stored is not None}
    window = expected[f"{_OURS}losses"].shape[0]
    for name in ("losses", "grad_norms"):
        if values[name].shape != (window,):
            raise ConversionError(
                f"{_SKIP}{name}: {values[name].size} values, but optimizer.skip_bad_steps has a window of {window}"
            )
        if not np.isfinite(values[name]).all():
            raise ConversionError(
                f"{_SKIP}{name}: holds a value that is not finite, with which Levanter skips every update "
                "(hint: import an earlier checkpoint)"
            )
    count, slot = int(values["count"]), int(values["current_idx"])
    return [
        constant(expected[f"{_OURS}losses"], values["losses"]),
        constant(expected[f"{_OURS}norms"], values["grad_norms"]),
        constant(expected[f"{_OURS}seen"], count if count < window else window + slot),
        constant(expected[f"{_OURS}skipped"], counts.steps - counts.taken),
    ]


def clip_place(stored: Mapping[str, StoredArray]) -> str | None:
    """Return the path of the norms that limit updates; None if there are none."""
    return next((name.removesuffix("update_norms") for name in stored if name.endswith("/update_norms")), None)


def clip_arrays(
    stored: Mapping[str, StoredArray], arrays: Mapping[str, LogicalArray], place: str
) -> list[ImportedArray]:
    """Return the norms of the last updates [window], and the number seen.

    The number is counted as SkipStep's is.

    Raises:
        ConversionError: The window has another length than in the configuration.
    """
    norms = stored[f"{place}update_norms"].read()
    count, slot, window = int(stored[f"{place}count"].read()), int(stored[f"{place}current_idx"].read()), norms.size
    if arrays[f"{CLIP}norms"].shape != norms.shape:
        raise ConversionError(
            f"{place}update_norms: {window} values, but optimizer.clip_update_norm has a window of "
            f"{arrays[f'{CLIP}norms'].shape[0]}"
        )
    return [
        constant(arrays[f"{CLIP}norms"], norms),
        constant(arrays[f"{CLIP}seen"], count if count < window else window + slot),
    ]
