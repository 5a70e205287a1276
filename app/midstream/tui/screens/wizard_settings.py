"""Settings of a migration: batch, steps compared and waited for, engine flags."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass

from midstream.counts import count
from midstream.migrate.journal.request import Request
from midstream.tui.screens.base import MidstreamScreen
from midstream.tui.screens.dialogs.form import FormField, FormScreen, Values
from midstream.tui.screens.dialogs.typed_flags import EXAMPLE, flags_problem, words_of

BATCH, PER_DEVICE = "--trainer.train_batch_size", "--trainer.per_device_parallelism"
DEFAULTS = Request("", "")


@dataclass(frozen=True)
class WizardSettings:
    """Settings of a migration, with the meaning of the flags of `--migrate`.

    Empty numbers leave the run's own.
    """

    batch: str = ""  # examples an update, on all devices
    per_device: str = ""  # examples of one device in a micro-batch
    healthy_steps: int = DEFAULTS.healthy_steps
    certify_steps: int = DEFAULTS.certify_steps
    flags: tuple[str, ...] = ()  # further engine flags

    @classmethod
    def of(cls, request: Request) -> WizardSettings:
        """Return the settings of a request."""
        rest = list(request.overrides)
        flags = {}
        for flag in (BATCH, PER_DEVICE):
            if flag in rest[:-1]:
                at = rest.index(flag)
                flags[flag] = rest[at + 1]
                del rest[at : at + 2]
        batch, per_device = flags.get(BATCH, ""), flags.get(PER_DEVICE, "")
        return cls(batch, per_device, request.healthy_steps, request.certify_steps, tuple(rest))

    @property
    def overrides(self) -> tuple[str, ...]:
        """The engine flags."""
        batch = (BATCH, self.batch) if self.batch else ()
        return (*batch, *((PER_DEVICE, self.per_device) if self.per_device else ()), *self.flags)

    @property
    def summary(self) -> str:
        """Differences from the defaults; "defaults" without any."""
        words = (
            f"batch {self.batch}" if self.batch else "",
            f"per device {self.per_device}" if self.per_device else "",
            count(self.healthy_steps, "healthy step") if self.healthy_steps != DEFAULTS.healthy_steps else "",
            f"{count(self.certify_steps, 'step')} compared" if self.certify_steps != DEFAULTS.certify_steps else "",
            " ".join(self.flags),
        )
        return ", ".join(filter(None, words)) or "defaults"


def ask(screen: MidstreamScreen, settings: WizardSettings, chosen: Callable[[WizardSettings], None]) -> None:
    """Prompt for the settings; ``chosen`` gets them."""
    fields = (
        FormField("batch", "Global batch", settings.batch, "as the run has it"),
        FormField("per_device", "Per-device batch", settings.per_device, "the largest that fits"),
        FormField("healthy_steps", "Healthy steps", str(settings.healthy_steps), str(DEFAULTS.healthy_steps)),
        FormField("certify_steps", "Steps compared", str(settings.certify_steps), str(DEFAULTS.certify_steps)),
        FormField("flags", "Engine flags", shlex.join(settings.flags), f"none; for example {EXAMPLE}"),
    )

    def check(values: Values) -> str:
        for name, label, least in (
            ("batch", "global batch", 1),
            ("per_device", "per-device batch", 1),
            ("healthy_steps", "healthy steps", 0),
            ("certify_steps", "steps compared", 0),
        ):
            value = values[name]
            if value and not (value.isascii() and value.isdecimal() and int(value) >= least):
                return f"{label}: {value!r} is not a number of {least} or more"
        return flags_problem(values["flags"])

    def answered(values: Values | None) -> None:
        if values is not None:
            chosen(
                WizardSettings(
                    values["batch"],
                    values["per_device"],
                    int(values["healthy_steps"] or DEFAULTS.healthy_steps),
                    int(values["certify_steps"] or DEFAULTS.certify_steps),
                    words_of(values["flags"]),
                )
            )

    screen.app.push_screen(FormScreen("Settings of the migration", fields, check, "plans with them"), answered)
