"""Which checkpoints are saved, and which are kept."""

from __future__ import annotations

import dataclasses
from typing import Literal

Kind = Literal["permanent", "temporary"]


@dataclasses.dataclass(frozen=True)
class KeepEvery:
    """Permanent steps: those divisible by ``every``, up to and including ``until``.

    ``until``: None is without end.
    """

    every: int
    until: int | None = None


@dataclasses.dataclass(frozen=True)
class KeepPolicy:
    """When to save, and what is kept.

    The first rule of ``keep`` whose ``until`` a step has not passed applies to it. Raises ValueError for an ``every``
    below 1, an ``until`` that does not increase, or a rule after one without ``until``, which would never apply.
    """

    save_interval: float = 15 * 60.0  # seconds
    keep: tuple[KeepEvery, ...] = (KeepEvery(every=10_000),)

    def __post_init__(self) -> None:
        if not self.save_interval > 0:
            raise ValueError(f"save_interval is {self.save_interval} seconds; it has to be above 0")
        reached = 0
        for number, rule in enumerate(self.keep):
            where = f"keep[{number}]"
            if rule.every < 1:
                raise ValueError(f"{where}: every is {rule.every}; it has to be at least 1 step")
            if rule.until is None:
                if number != len(self.keep) - 1:
                    raise ValueError(
                        f"{where}: only the last rule may leave out 'until'; those after it are never reached"
                    )
            elif rule.until <= reached:
                raise ValueError(
                    f"{where}: until is {rule.until}, but the rules before it already reach to step {reached}"
                )
            else:
                reached = rule.until

    def is_permanent(self, step: int) -> bool:
        """Return whether ``step-<step>`` is never deleted. Step 0 is never permanent."""
        for rule in self.keep:
            if rule.until is None or step <= rule.until:
                return step > 0 and step % rule.every == 0
        return False

    def kind(self, step: int, now: float, last_saved: float) -> Kind | None:
        """Return what to save at a step boundary at ``now``.

        The last save began at ``last_saved`` (both seconds).
        """
        if step <= 0:
            return None
        if self.is_permanent(step):
            return "permanent"
        return "temporary" if now - last_saved >= self.save_interval else None
