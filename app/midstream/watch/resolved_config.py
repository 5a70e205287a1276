"""The configuration that an attempt trained with, from the beginning of its log; and what two of them do not share."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from midstream.errors import MidstreamError
from midstream.hosts.host_pool import Hosts
from midstream.watch.snapshot import RunView
from midstream_engine import records

WITHIN = 1 << 18  # bytes of a log's beginning in which its configuration stands
_STAMPED = re.compile(r"\d{4}-\d\d-\d\dT")
_HEADING = "resolved configuration:"
_ABSENT = object()


@dataclass(frozen=True)
class Change:
    """A field that differs, by its dotted name. ``kind``: ``added``, ``removed`` or ``changed``."""

    name: str
    kind: str
    before: Any = None
    after: Any = None


def told(log: str) -> str:
    """The configuration in a log's beginning, as YAML: the lines up to the next one with a time. Empty: none."""
    _, found, rest = log.partition(_HEADING)
    if not found:
        return ""
    lines = rest.splitlines()[1:]
    end = next((number for number, line in enumerate(lines) if _STAMPED.match(line)), len(lines))
    return "\n".join(lines[:end])


def read(hosts: Hosts, run: RunView, attempt: int) -> str:
    """An attempt's configuration as YAML. MidstreamError where its log does not tell."""
    host = hosts.get(run.host)
    path = records.RunPaths(host.root, run.run_id).attempt(attempt).log(0)
    text = told(host.call("runs.run_state.read_text", path=path, limit=WITHIN))
    if not text:
        raise MidstreamError(
            f"the log of attempt {attempt} on {run.host} does not tell its configuration",
            f"midstream --log {run.run_id} shows the newest one's",
        )
    return text


def value_of(text: str) -> Any:
    """The value of such a configuration. MidstreamError where it is none."""
    import yaml

    from midstream.plain_yaml import load_plain

    try:
        return load_plain(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        words = " ".join(str(error).split())[:200]
        raise MidstreamError(f"the configuration in the log cannot be read: {words}", "midstream --log RUN") from None


def changes(before: str, after: str) -> list[Change]:
    """The fields in which two configurations, as YAML, differ, by name."""
    one, other = (_flat(value_of(side) or {}) for side in (before, after))
    found = []
    for name in sorted(one.keys() | other.keys()):
        first, second = one.get(name, _ABSENT), other.get(name, _ABSENT)
        if second is _ABSENT:
            found.append(Change(name, "removed", before=first))
        elif first is _ABSENT:
            found.append(Change(name, "added", after=second))
        elif first != second:
            found.append(Change(name, "changed", first, second))
    return found


def line(change: Change, arrow: str = "->") -> str:
    """``~ trainer.per_device_parallelism 16 -> 8``, ``+ name after``, ``- name before``."""
    if change.kind == "changed":
        return f"~ {change.name} {change.before} {arrow} {change.after}"
    return f"+ {change.name} {change.after}" if change.kind == "added" else f"- {change.name} {change.before}"


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, by dotted names."""
    if not isinstance(value, Mapping) or not value:
        return {prefix: value}
    return {
        name: item
        for key, inner in value.items()
        for name, item in _flat(inner, f"{prefix}.{key}" if prefix else str(key)).items()
    }
