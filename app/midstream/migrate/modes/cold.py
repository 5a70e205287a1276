"""Cold: stop, copy, start, without a standby."""

from __future__ import annotations

from typing import TYPE_CHECKING

from midstream.migrate import stages
from midstream.migrate.modes.assumptions import COMMAND_SECONDS, DEFAULT_COPY_SPEED, ENGINE_START_SECONDS
from midstream.migrate.modes.mode import Mode

if TYPE_CHECKING:
    from midstream.migrate.modes.work import DowntimeSeconds, Rates, Work

COLD = "cold"


class Cold(Mode):
    name = COLD
    sequence = "stop, copy, start"
    has_standby = False

    def check_trainer(self, run_id: str, trainer: str, hosts: tuple[str, ...]) -> None:
        """Groups are supported: nothing is rehearsed."""

    def queue_warnings(self, wait: str, *, shared: bool) -> tuple[str, ...]:
        other = "" if shared else "; --mode warm waits while the source trains"
        return (
            f"a cold migration stops the run before the job is submitted: while it waits in the queue (SLURM expects "
            f"{wait} now) nothing trains{other}",
        )

    def downtime(self, seconds: DowntimeSeconds) -> dict[str, float]:
        return {
            "quiesce": COMMAND_SECONDS + seconds.step,
            "save": 0.5 + seconds.save,
            "copy": 1.0 + seconds.copy,
            "verify": 0.3 + seconds.read,
            "provision": ENGINE_START_SECONDS,
            "install": 0.0,
            "compile": max(0.0, seconds.first_step - seconds.step),
            "restore": 1.0 + seconds.read,
            "first_step": seconds.target_step,
        }

    def unknown_phases(self, work: Work, rates: Rates) -> tuple[str, ...]:
        verify = () if work.checkpoint_bytes else ("verify",)
        compiling = ("compile",) if work.compile is None else ()
        unknown = {*super().unknown_phases(work, rates), *({*verify, *compiling} - rates.entries.keys())}
        return tuple(name for name in stages.DOWNTIME_PHASES if name in unknown)

    def prepared_stages(self, work: Work, rates: Rates) -> dict[str, float | None]:
        return {stages.CHECKPOINT: work.copy_seconds(rates)} if work.copies_checkpoint else {}

    def preparation_seconds(
        self, data_bytes: int, checkpoint_bytes: int, rates: Rates, compile_seconds: float, copied_bytes: float
    ) -> float:
        return data_bytes / (rates.copy or DEFAULT_COPY_SPEED)
