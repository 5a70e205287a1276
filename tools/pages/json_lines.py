"""Kinds of JSON lines, from the classes of their events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple, get_args, get_type_hints

from midstream.json_events import (
    comparison_events,
    cost_events,
    fleet_events,
    migration_events,
    result_event,
    run_events,
)
from midstream.json_events.json_event import HOST, MIGRATION, RUN, TARGET, JsonEvent

MODULES = (fleet_events, run_events, comparison_events, cost_events, migration_events, result_event)
SHARED = (RUN, HOST, TARGET, MIGRATION)  # meanings that need no mode


class EventKind(NamedTuple):
    """All lines with one name of an event, as the page describes them."""

    name: str
    of: tuple[str, ...]  # modes
    about: str
    fields: Mapping[str, str]  # field -> meaning
    more: str


@cache
def kinds() -> Mapping[str, EventKind]:
    """Return the kinds of JSON lines by name. Those of `result` are one."""
    classes = [
        each
        for module in MODULES
        for each in vars(module).values()
        if isinstance(each, type) and issubclass(each, JsonEvent) and each is not JsonEvent
    ]
    found: dict[str, list[type[JsonEvent]]] = {}
    for each in classes:
        found.setdefault(each.event, []).append(each)
    return {name: _kind(name, tuple(group)) for name, group in found.items()}


def _kind(name: str, classes: tuple[type[JsonEvent], ...]) -> EventKind:
    first = classes[0]
    fields: dict[str, dict[str, list[str]]] = {}  # field -> meaning -> modes
    for each in classes:
        for field, text in meanings(each).items():
            fields.setdefault(field, {}).setdefault(text, []).extend(each.of if len(classes) > 1 else ())
    base = meanings(first) if len(classes) > 1 else {}
    shown = {
        field: "; ".join(
            text if text in SHARED or field in base or not of else f"{_listed(of)}: {text}"
            for text, of in texts.items()
        )
        for field, texts in fields.items()
    }
    about = (first.__doc__ or "").split("\n")[0].rstrip(".")
    modes = tuple(dict.fromkeys(mode for each in classes for mode in each.of))
    return EventKind(name, modes, about, shown, first.more)


def _listed(modes: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(modes))


def problem_of(value: Mapping[str, Any]) -> str:
    """Return what a JSON line has that is not in `kinds`; empty if nothing."""
    kind = kinds().get(str(value.get("event")))
    if kind is None:
        return f"event {value.get('event')!r} is not in midstream.json_events"
    unknown = [name for name in value if name != "event" and name not in kind.fields]
    return f"event {kind.name}: {', '.join(unknown)}: not in midstream.json_events" if unknown and not kind.more else ""


def meanings(kind: type[JsonEvent]) -> Mapping[str, str]:
    """Return the meaning of each field of a kind of event."""
    hints = get_type_hints(kind, include_extras=True).items()
    return {name.rstrip("_"): get_args(hint)[1] for name, hint in hints if hasattr(hint, "__metadata__")}
