"""Values that Levanter's own configuration dumps have where users write others."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from midstream_core.json_types import JsonObject
from midstream_engine.config import levanter_fields


def kind_of(value: JsonObject, choices: Mapping[str, type], default: str, path: str) -> str:
    """Return the ``type`` of a value without one.

    The type is ``default``, unless that lacks a field of the value and only one other type has all of them.

    Levanter writes the members of a list of trackers without their types.
    """
    keys = {key for key in value if not levanter_fields.covers(f"{path}.{key}")}
    fitting = [name for name, choice in choices.items() if keys <= {field.name for field in dataclasses.fields(choice)}]
    return fitting[0] if default not in fitting and len(fitting) == 1 else default


def same(value: object, other: object) -> bool:
    """Return whether two values are one tracker.

    Levanter writes a tracker twice, once without its type.
    """
    if not isinstance(value, Mapping) or not isinstance(other, Mapping):
        return False
    return {**value, "type": None} == {**other, "type": None}


def gradient_checkpointing(policy: JsonObject) -> bool | str:
    """Return the nearest value for the fields of Haliax's ``ScanCheckpointPolicy``.

    The fields select memory and speed.
    """
    if policy.get("disable"):
        return False
    if policy.get("nested"):
        return "nested"
    saved = [policy.get(name) for name in ("save_carries", "save_inputs", "save_block_internals")]
    if "offload" in saved or policy.get("offload_block_internals"):
        return "offload"
    if policy.get("save_block_internals"):
        return "save_all"
    return True if policy.get("save_carries", True) else "recompute"
