"""Commands to an engine that runs or starts: ``command.json``."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Optional

from midstream_core.records.field_forms import CHECKPOINT_NAME, NAME, RUN_ID_OR_EMPTY
from midstream_core.records.record import JsonRecord

SAVE = "save"
STOP = "stop"
RESTORE = "restore"
PROMOTE = "promote"
STANDBY = "standby"
REPLAY = "replay"
# Actions that an attempt may be started with; promote: a replica's requeued job, which has to restore the sealed state.
STARTS = frozenset({RESTORE, STANDBY, REPLAY, PROMOTE})
TAKEOVERS = frozenset({RESTORE, PROMOTE})  # those of them that make an attempt the run's owner
STANDBYS = frozenset({STANDBY, REPLAY})  # those of them whose attempt waits as a standby


@dataclasses.dataclass(frozen=True)
class Command(JsonRecord):
    """``command.json``: what a running or starting engine is to do.

    A new command has a higher ``sequence``.

    - ``save``: save at the next step boundary and go on.
    - ``stop``: save, seal and exit 0. With an ``epoch`` above the engine's own, the engine also writes the fence with
      ``owner``, so that its status ``stopped`` is the source's acknowledgement. With a later ``step`` it first trains
      up to that step. With ``last_step_numbers`` the trainer's checkpoints have the number of their last step.
    - ``restore``: start from ``checkpoint``, whose root digest must be ``root_digest``.
    - ``standby``: at the start, compile, rehearse a few updates on ``checkpoint``, and wait for ``restore`` or
      ``stop``. For a replica: keep the parameters of ``step`` for comparison.
    - ``replay``: at the start only; train on from ``checkpoint`` as a replica, without fence, trackers or checkpoints.
    - ``promote``: a replica becomes the run from ``step`` on. ``restore`` makes it replace its state instead.
    """

    FORMAT: ClassVar[int] = 1

    action: str
    epoch: int = 1
    checkpoint: Optional[str] = dataclasses.field(default=None, metadata={"form": CHECKPOINT_NAME})
    root_digest: Optional[str] = None
    step: Optional[int] = None
    owner: str = dataclasses.field(default="", metadata={"form": NAME})
    migration: str = dataclasses.field(default="", metadata={"form": RUN_ID_OR_EMPTY})
    sequence: int = 1
    last_step_numbers: bool = False
