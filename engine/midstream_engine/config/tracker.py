"""Where metrics go beside metrics.jsonl: ``trainer.tracker`` of the configuration."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import draccus

from midstream_engine.config.errors import ConfigError


@dataclass(frozen=True)
class TrackerConfig(draccus.ChoiceRegistry):
    """One tracker; ``type`` names the kind."""

    @classmethod
    def default_choice_name(cls) -> str:
        return "wandb"


@TrackerConfig.register_subclass("wandb")
@dataclass(frozen=True)
class WandbConfig(TrackerConfig):
    """Weights & Biases. Its files lie in the run directory; process 0 alone writes."""

    entity: str | None = None  # user or team; None: the account's default
    project: str | None = None  # None: W&B's default
    name: str | None = None  # shown in the interface; None: W&B chooses
    tags: list[str] = field(default_factory=list)  # of the run
    id: str | None = None  # None: the run's id, so that every attempt continues the same W&B run
    group: str | None = None  # of runs that belong together
    mode: str | None = None  # online, offline or disabled; None: $WANDB_MODE, then online
    resume: Any = "allow"  # allow, must, never, auto or null: what happens where the id exists
    save_code: Any = True  # true: the repository of the program; a path: that directory; false: nothing
    save_xla_dumps: bool = False  # log what --xla_dump_to in $XLA_FLAGS wrote

    def __post_init__(self) -> None:
        if self.mode not in (None, "online", "offline", "disabled"):
            raise ConfigError(f"trainer.tracker.mode: {self.mode!r} is not known; use online, offline or disabled")


@TrackerConfig.register_subclass("tensorboard")
@dataclass(frozen=True)
class TensorboardConfig(TrackerConfig):
    """Event files for TensorBoard, written by tensorboardX."""

    logdir: str = "tblogs"  # the run's id is appended
    comment: str = ""  # appended to the default directory name
    max_queue: int = 10  # events that wait before they are written
    flush_secs: int = 120  # seconds after which they are written at the latest
    filename_suffix: str = ""  # of the event files


@TrackerConfig.register_subclass("json_logger")
@dataclass(frozen=True)
class JsonConfig(TrackerConfig):
    """metrics.jsonl, which is always written: naming it changes nothing."""


@TrackerConfig.register_subclass("noop")
@dataclass(frozen=True)
class NoTrackerConfig(TrackerConfig):
    """Nothing beside metrics.jsonl."""
