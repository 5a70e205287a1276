"""Evidence that a restored state is the saved one, and its reference losses."""

from __future__ import annotations

import logging
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor

from midstream_core import records
from midstream_core.attempt.errors import ContradictionError
from midstream_engine.attempt.changed_settings import changed_settings
from midstream_engine.attempt.resume import Origin, Resumed
from midstream_engine.checkpoint.loading.checkpoint_records import read_manifest
from midstream_engine.checkpoint.train_document import TrainDocument
from midstream_engine.computation.programs import CompiledRun
from midstream_engine.computation.reference_losses import TOLERANCE, MeasuredLosses, worst_error
from midstream_engine.config.train import TrainLmConfig
from midstream_engine.models.lm import LmModel

log = logging.getLogger(__name__)
# Settings that decide which losses a state has on given tokens.
_FUNCTION = (
    "model.",
    "data.block_cross_document_attention",
    "data.eos_token",
    "data.ignore_token_id",
    "data.tokenizer",
)


class ModelLosses:
    """Reference losses of a restored model.

    A thread measures the losses while the rest of the state is restored: the parameters are enough.
    """

    def __init__(self, origin: Origin, ready: CompiledRun) -> None:
        self._origin, self._ready = origin, ready
        self._measured: Future[MeasuredLosses] | None = None
        self.waited = 0.0  # seconds that `result` waited for the program to be compiled

    def begin(self, model: LmModel) -> None:
        """Begin to measure."""
        thread = ThreadPoolExecutor(1, thread_name_prefix="reference-losses")
        self._measured = thread.submit(self._measure, model)
        thread.shutdown(wait=False)

    def result(self, model: LmModel) -> MeasuredLosses:
        """Return the losses; measure them if that has not begun.

        Raises the compiler's error.
        """
        began = time.monotonic()
        self._ready.programs.reference_losses  # noqa: B018 (waits)
        self.waited = time.monotonic() - began
        return self._measure(model) if self._measured is None else self._measured.result()

    def _measure(self, model: LmModel) -> MeasuredLosses:
        # The batch that was next when the state was saved, even where the batch size has changed since.
        expected = self._ready.setup.batches.under(self._origin.batch_schedule).batch(self._origin.step)
        return self._ready.programs.reference_losses.measure(model, expected)


def prove(
    origin: Origin,
    resumed: Resumed,
    model: LmModel,
    train: TrainDocument,
    devices: int,
    losses_of_model: ModelLosses,
    seconds: dict[str, float],
) -> records.Restore:
    """Measure the evidence that restored state and next batch are the expected ones.

    Args:
        origin: The checkpoint that was restored.
        resumed: What was restored; an update may have taken its state.
        model: The restored parameters.
        train: The checkpoint's ``train.json``.
        devices: Number of devices that hold the state.
        losses_of_model: Measures the losses.
        seconds: Durations of earlier phases, to be part of the evidence.
    """
    began = time.monotonic()
    measured = losses_of_model.result(model)
    recorded = train.get("reference_losses") or {}
    losses = [float(loss) for loss in recorded.get("losses", [])]
    error = worst_error(losses, measured.losses)
    evidence = records.Restore(
        checkpoint=origin.name,
        step=resumed.step,
        root_digest=resumed.root_digest,
        expected_root_digest=read_manifest(origin.directory).root_digest,
        recorded_losses=losses,
        recomputed_losses=measured.losses,
        losses_error=min(error, sys.float_info.max),
        batch_digest=measured.batch_digest,
        recorded_batch_digest=recorded.get("batch_digest", ""),
        devices=devices,
        seconds={**seconds, "reference_losses": time.monotonic() - began - losses_of_model.waited},
    )
    if len(losses) != len(measured.losses):
        log.error(
            "%s has %d reference losses, %d were recomputed: nothing is compared",
            origin.name, len(losses), len(measured.losses),
        )  # fmt: skip
    if evidence.batch_digest != evidence.recorded_batch_digest:
        log.error("batch %d is not the one that %s expects next", resumed.step, origin.name)
    log.info(
        "reference losses: largest relative difference %.2e over %d sequences, in %.2f s",
        error, len(losses), evidence.seconds["reference_losses"],
    )  # fmt: skip
    return evidence


def contradiction(evidence: records.Restore, origin: Origin, config: TrainLmConfig) -> str:
    """Return why the restored state is not the saved one; empty if nothing shows it.

    Other losses show nothing where the configuration computes another function than the one that was saved: the log
    has them.
    """
    error = evidence.losses_error
    if error <= TOLERANCE or len(evidence.recorded_losses) != len(evidence.recomputed_losses):
        return ""
    differ = (
        f"reference losses differ by {records.difference_text(error)} from those recorded with {origin.name} "
        f"(allowed {TOLERANCE:.0e})"
    )
    changed = [key for key in changed_settings(origin, config) if key.startswith(_FUNCTION)]
    if not changed:
        return differ
    log.error("%s; it was trained with another %s", differ, ", ".join(changed))
    return ""


def check_losses_agree(evidence: records.Restore, origin: Origin, config: TrainLmConfig) -> None:
    """Raise ContradictionError where the restored state is not the saved one."""
    why = contradiction(evidence, origin, config)
    if why:
        raise ContradictionError(
            why,
            f"{why}: the run is not continued from it, and no update of this attempt counts "
            "(hint: midstream --verify compares its bytes with their hashes)",
        )
