"""JSON lines of --json and notifications of `on_event:`: fields and meanings.

docs/reference/json-lines.md is made from these tables. `problem_of` checks an event against them; the tests check each
line that a command prints, and the source of each event.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from midstream.json_events.comparison_events import COMPARISON_EVENTS
from midstream.json_events.cost_events import COST_EVENTS
from midstream.json_events.fleet_events import FLEET_EVENTS
from midstream.json_events.migration_events import MIGRATION_EVENTS
from midstream.json_events.result_event import RESULT_EVENT
from midstream.json_events.run_events import RUN_EVENTS

EVENTS = (*FLEET_EVENTS, *RUN_EVENTS, *COMPARISON_EVENTS, *COST_EVENTS, *MIGRATION_EVENTS, RESULT_EVENT)
BY_NAME = {event.name: event for event in EVENTS}


def problem_of(value: Mapping[str, Any]) -> str:
    """Return what a JSON line has that is not in `EVENTS`; empty if nothing."""
    event = BY_NAME.get(str(value.get("event")))
    if event is None:
        return f"event {value.get('event')!r} is not in midstream.json_events"
    unknown = [name for name in value if name != "event" and name not in event.fields]
    return (
        f"event {event.name}: {', '.join(unknown)}: not in midstream.json_events" if unknown and not event.more else ""
    )
