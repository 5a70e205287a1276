"""Live: the source trains until a replica on the target has caught up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from midstream.counts import count
from midstream.errors import UsageError
from midstream.migrate import stages
from midstream.migrate.modes.assumptions import CERTIFY_SECONDS
from midstream.migrate.modes.mode import Mode
from midstream.migrate.modes.warm import WARM

if TYPE_CHECKING:
    from midstream.migrate.modes.work import DowntimeSeconds, Rates, Source, Work

LIVE = "live"
LONG_REPLAY = 1000  # steps after which small differences may have grown


class Live(Mode):
    name = LIVE
    sequence = "the source trains until the target has caught up"
    replays = True
    fallback = WARM
    alternative = "; --mode warm copies instead"

    def check_stores(self, run_id: str, bucket: str) -> None:
        if bucket:
            raise UsageError(
                f"a live migration of {run_id} is not possible with checkpoints in {bucket}",
                "--mode warm supports buckets",
            )

    def check_import(self) -> None:
        raise UsageError("an imported run cannot be migrated live: it does not train", "--mode warm can migrate it")

    def check_source(self, source: Source) -> None:
        if not source.running or source.checkpoint != "now":
            why = f"it is {source.state}" if not source.running else f"--checkpoint {source.checkpoint} is behind it"
            raise UsageError(f"run {source.run_id} cannot be migrated live: {why}", "--mode warm can migrate it")

    def check_trainer(self, run_id: str, trainer: str, hosts: tuple[str, ...]) -> None:
        raise UsageError(
            f"{run_id} is a run of {trainer}: a live migration needs midstream's engine, which can replay",
            "--mode warm",
        )

    def consent(self, source: Source) -> tuple[str, ...]:
        """The recomputed state is close to the source's, not equal."""
        from midstream_core.precision import precision_of, rounds_products

        lines: list[str] = []
        if reduced := [policy for policy, _ in source.precisions if precision_of(policy).reduced]:
            lines.append(f"the run computes in {reduced[0]}: losses are compared within 2e-2, and the states diverge")
        elif any(rounds_products(*settings) for settings in source.precisions):
            lines.append(
                "products are in the accelerators' default precision (trainer.matmul_precision): losses are compared "
                "within 2e-2, and the states diverge"
            )
        if source.replayed_steps > LONG_REPLAY:
            lines.append(
                f"{count(source.replayed_steps, 'step')} are replayed: small differences may grow over so many"
            )
        return tuple(lines)

    def warnings(self, source: Source) -> tuple[str, ...]:
        replay = count(source.replayed_steps, "step") if source.saved else "few steps"
        return (
            f"the target replays {replay} and must need less than {source.step:.3f} s a step; its rehearsal measures "
            "that; if it is slower, the migration continues as a warm migration",
        )

    def consequence(self, source: str, target: str, later: str) -> str:
        return f"{target} replays the run; {source} trains until it has caught up."

    def predicted(self, seconds: DowntimeSeconds, measured: Mapping[str, float], *, running: bool) -> dict[str, float]:
        return dict.fromkeys(stages.DOWNTIME_PHASES, 0.0)

    def unknown_phases(self, work: Work, rates: Rates) -> tuple[str, ...]:
        return ()

    def prepared_stages(self, work: Work, rates: Rates) -> dict[str, float | None]:
        replay = rates.stages.get(stages.REPLAY, _replay_seconds(work, rates.step))
        return {**super().prepared_stages(work, rates), stages.REPLAY: replay}

    def certify_seconds(self, work: Work, rates: Rates) -> float | None:
        """The source's state is copied too, and compared."""
        copying = work.copy_seconds(rates)
        return None if copying is None else CERTIFY_SECONDS + copying


def _replay_seconds(work: Work, step: float | None) -> float | None:
    """Return the seconds until a replica has caught up.

    None where its pace is unknown, or too slow.
    """
    if not step or not work.step or step >= work.step:
        return None
    return work.replayed_steps / (1 / step - 1 / work.step)
