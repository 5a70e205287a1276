"""Number of processes that saved a checkpoint of DeepSpeed.

Standard library only; Python 3.8.
"""

from __future__ import annotations

import os
import posixpath
import re
from typing import NamedTuple, cast

from midstream_core import records
from midstream_core.format_error import FormatError
from midstream_core.json_types import JsonValue, object_or_empty
from midstream_core.torch_archive import TorchArchive
from midstream_host.driver.reshard.errors import ReshardError

_MODEL = re.compile(r"(?:zero_pp_rank_0_)?mp_rank_(\d{1,6})_model_states\.pt")


class StoredRanks(NamedTuple):
    """Numbers of ranks. ``model``: those of tensor and pipeline parallelism together."""

    data: int
    model: int

    @property
    def world(self) -> int:
        """Processes that saved it."""
        return self.data * self.model


def stored_ranks(directory: str) -> StoredRanks:
    """Return the ranks of the checkpoint in a directory ``TAG``.

    Raises ReshardError and OSError.
    """
    names = sorted(name for name in os.listdir(directory) if _MODEL.fullmatch(name))
    if not names:
        raise ReshardError("{}: it has no model_states.pt".format(directory))
    try:
        with TorchArchive(posixpath.join(directory, names[0])) as archive:
            state = cast("JsonValue", archive.load())
    except (FormatError, records.RecordError) as error:
        raise ReshardError("{} {}".format(names[0], error)) from None
    data = object_or_empty(state).get("dp_world_size")
    if type(data) is not int or data < 1:
        raise ReshardError("{} does not say how many ranks wrote it".format(names[0]))
    return StoredRanks(data, len(names))
