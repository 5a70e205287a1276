"""Trackers that receive metrics besides metrics.jsonl.

``trainer.tracker`` of the configuration.
"""

from __future__ import annotations

from collections.abc import Iterable
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
    """Weights & Biases. Its files are in the run directory; only process 0 writes."""

    entity: str | None = None  # user or team; None: the account's default
    project: str | None = None  # None: W&B's default
    name: str | None = None  # shown in the interface; None: W&B chooses
    tags: list[str] = field(default_factory=list)  # of the run
    id: str | None = None  # None: the run's id, so that every attempt continues the same W&B run
    group: str | None = None  # of runs that belong together
    mode: str | None = None  # online, offline or disabled; None: $WANDB_MODE, then online
    resume: Any = "allow"  # allow, must, never, auto or null: what happens if the id exists
    save_code: Any = True  # true: the repository of the program; a path: that directory; false: nothing
    save_xla_dumps: bool = False  # log the files of --xla_dump_to in $XLA_FLAGS

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
    flush_secs: int = 120  # seconds after which they are written
    filename_suffix: str = ""  # of the event files


@TrackerConfig.register_subclass("json_logger")
@dataclass(frozen=True)
class JsonConfig(TrackerConfig):
    """The file metrics.jsonl, which is always written.

    This type only gives the run a project and tags.
    """

    project: str | None = None  # that midstream's lists can be grouped by
    tags: list[str] = field(default_factory=list)  # of the run, in midstream's lists


@TrackerConfig.register_subclass("noop")
@dataclass(frozen=True)
class NoTrackerConfig(TrackerConfig):
    """Nothing but metrics.jsonl."""


@dataclass(frozen=True)
class Labels:
    """Project and tags of a run, as its trackers have them; lists of runs show them."""

    project: str = ""
    tags: tuple[str, ...] = ()


def labels_of(trackers: Iterable[TrackerConfig]) -> Labels:
    """Return the first project and all tags of the trackers."""
    named = [tracker for tracker in trackers if isinstance(tracker, WandbConfig | JsonConfig)]
    project = next((tracker.project for tracker in named if tracker.project), "")
    return Labels(project, tuple(dict.fromkeys(tag for tracker in named for tag in tracker.tags)))
