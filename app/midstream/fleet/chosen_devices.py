"""The GPUs of a host that a fleet file chooses.

The field is ``devices: [0, 1]``, or ``CUDA_VISIBLE_DEVICES`` in ``env:``.
"""

from __future__ import annotations

from typing import Any, cast

from midstream.errors import UsageError
from midstream_core.visible_devices import BY_BUS, ENTRY, ORDER, VISIBLE, visible_devices

HINT = "devices: [0, 1], or GPU-... and MIG-... of nvidia-smi -L; a number creates virtual CPU devices"


def take_devices(where: str, entry: dict[str, Any]) -> None:
    """Make a list of GPUs in ``devices:`` of a host's entry part of its ``env:``.

    CUDA counts indices as nvidia-smi does there: its own order has the fastest GPU first.

    Args:
        where: File and entry, for errors.
        entry: The host's fields as YAML has them, which are changed.

    Raises:
        UsageError: A device is none or named twice, or both ways are used.
    """
    env: Any = entry.get("env") or {}
    if not isinstance(env, dict):
        return  # the check of its fields reports it
    variables, chosen = dict(cast("dict[str, Any]", env)), entry.get("devices")
    if isinstance(chosen, list):
        devices = [str(device) for device in cast("list[Any]", chosen)]
        if VISIBLE in variables:
            raise UsageError(f"{where} has both devices: and {VISIBLE} in env:", "one of them")
        wrong = next((device for device in devices if not ENTRY.fullmatch(device)), None)
        if wrong is not None or not devices:
            raise UsageError(f"{where}.devices: {wrong or 'an empty list'} is no GPU", HINT)
        if len(set(devices)) < len(devices):
            raise UsageError(f"{where}.devices names a GPU twice", HINT)
        variables[VISIBLE] = ",".join(devices)
        del entry["devices"]
    elif VISIBLE in variables:
        variables[VISIBLE] = str(variables[VISIBLE])  # YAML has one index as a number
    if any(device.isdecimal() for device in visible_devices(variables) or ()):
        variables.setdefault(ORDER, BY_BUS)
    if variables != env:
        entry["env"] = variables
