"""Scheduled events of Azure, from its instance metadata service.

Standard library only; also sent to hosts.

A spot machine's ``Preempt`` event comes at least 30 s before it is evicted; ``Terminate``, ``Redeploy`` and ``Reboot``
come 5 to 15 minutes before. The events are those of all machines of an availability set or a scale set.
``MIDSTREAM_AZURE_METADATA`` names a simulated service.

https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events
"""

from __future__ import annotations

import json
import os

from midstream_core.json_types import JsonObject, JsonValue, list_or_empty, object_or_empty
from midstream_core.metadata_request import metadata_answer

VARIABLE = "MIDSTREAM_AZURE_METADATA"
ADDRESS = "http://169.254.169.254"
ASSET_TAG = "/sys/class/dmi/id/chassis_asset_tag"
AZURE_TAG = "7783-7084-3265-9085-8269-3286-77"  # of every machine of Azure
MAX_ANSWER = 100000  # bytes
MAX_EVENTS = 1000
ENDING = ("Preempt", "Terminate", "Redeploy", "Reboot")  # Freeze pauses the machine for seconds


def metadata_address(asset_tag: str = ASSET_TAG) -> str:
    """Return the service's address; empty on a machine that is not Azure's."""
    named = os.environ.get(VARIABLE, "")
    if named:
        return named.rstrip("/")
    try:
        with open(asset_tag, encoding="utf-8", errors="replace") as file:
            return ADDRESS if AZURE_TAG in file.read(200) else ""
    except OSError:
        return ""


def notices(address: str) -> list[str] | None:
    """Return the notices that are in force for this machine.

    None where they cannot be read, which proves nothing.
    """
    events = _read(address, "/metadata/scheduledevents?api-version=2020-07-01")
    listed = object_or_empty(events).get("Events")
    if not isinstance(listed, list):
        return None
    ending = [event for event in map(object_or_empty, listed[:MAX_EVENTS]) if event.get("EventType") in ENDING]
    if not ending:
        return []
    machine = _read(address, "/metadata/instance/compute?api-version=2021-02-01")
    name = object_or_empty(machine).get("name")
    if not isinstance(name, str) or not name:
        return None  # it is not known which machine is meant
    return [_text(event) for event in ending if _is_meant(event.get("Resources"), name)]


def _is_meant(resources: JsonValue, name: str) -> bool:
    return any(str(resource).lower() == name.lower() for resource in list_or_empty(resources))


def _text(event: JsonObject) -> str:
    when = str(event.get("NotBefore") or "")[:40]
    return "{} {}".format(str(event["EventType"]).lower(), "not before " + when if when else "now")


def _read(address: str, path: str) -> JsonValue:
    """Return a JSON answer; None where there is none."""
    try:
        return json.loads(metadata_answer(address + path, {"Metadata": "true"}, MAX_ANSWER)[1])
    except ValueError:
        return None
