"""Record of one host's share of a spread checkpoint that may be committed."""

from __future__ import annotations

import dataclasses

from midstream_core.records.field_forms import NAME
from midstream_core.records.record import JsonRecord

SHARE = "share.json"


@dataclasses.dataclass(frozen=True)
class Share(JsonRecord):
    """``share.json``: this directory has all objects of its host, and no manifest yet.

    The file is written before process 0 may commit and removed after the manifest is written. Where the manifest is
    missing, the checkpoint is committed if any host has its manifest.
    """

    host: str = dataclasses.field(metadata={"form": NAME})  # this one, a name of ``Manifest.hosts``
    leader: str = dataclasses.field(metadata={"form": NAME})  # id of process 0's checkpoints directory
