"""Request for a migration, from the command line or the wizard."""

from __future__ import annotations

from dataclasses import dataclass

from midstream.migrate.modes.registry import WARM


@dataclass(frozen=True)
class Request:
    """The flags of `midstream --migrate RUN --to TARGET`."""

    run_id: str
    target: str
    mode: str = WARM
    checkpoint: str = "now"  # "now", "latest", or a step number
    source: str = ""  # host of the copy to migrate; empty: the copy with the highest fence epoch
    source_lost: bool = False
    certify_steps: int = 16
    healthy_steps: int = 100
    overrides: tuple[str, ...] = ()  # engine flags
