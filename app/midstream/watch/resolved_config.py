"""Resolved configurations of attempts, read from the beginning of their logs.

Two of them can be compared.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from midstream.errors import MidstreamError
from midstream.hosts.host_pool import HostPool
from midstream.plain_yaml import load_plain
from midstream.watch.snapshot import RunView
from midstream_core import records
from midstream_core.json_types import RunConfig
from midstream_host.runs import run_state

HEADER_SIZE = 1 << 18  # bytes of a log's beginning that contain its configuration
_STAMPED = re.compile(r"\d{4}-\d\d-\d\dT")
_HEADING = "resolved configuration:"
_ABSENT = object()


@dataclass(frozen=True)
class ConfigChange:
    """Field that differs, by its dotted name.

    ``kind``: ``added``, ``removed`` or ``changed``.
    """

    name: str
    kind: str
    before: object = None
    after: object = None


def parse_log(log: str) -> str:
    """Return the configuration in a log as YAML; empty if there is none.

    The lines end before the next timestamp.
    """
    _, heading, rest = log.partition(_HEADING)
    if not heading:
        return ""
    lines = rest.splitlines()[1:]
    end = next((number for number, line in enumerate(lines) if _STAMPED.match(line)), len(lines))
    return "\n".join(lines[:end])


def read(hosts: HostPool, run: RunView, attempt: int) -> str:
    """Read an attempt's configuration as YAML.

    Raises MidstreamError if its log does not contain it.
    """
    host = hosts.get(run.host)
    path = records.RunPaths(host.root, run.run_id).attempt(attempt).log(0)
    text = parse_log(host.call(run_state.read_text)(path=path, limit=HEADER_SIZE))
    if not text:
        raise MidstreamError(
            f"the log of attempt {attempt} on {run.host} does not contain its configuration",
            f"midstream --log {run.run_id} shows the log of the newest attempt",
        )
    return text


def value_of(text: str) -> RunConfig:
    """Parse a configuration. MidstreamError if it is malformed."""
    try:
        return load_plain(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        words = " ".join(str(error).split())[:200]
        raise MidstreamError(f"the configuration in the log cannot be read: {words}", "midstream --log RUN") from None


def fields(text: str) -> dict[str, Any]:
    """Return the fields of a configuration (YAML) by their dotted names."""
    return _flat(value_of(text) or {})


def changes(before: str, after: str) -> list[ConfigChange]:
    """Return the fields in which two configurations (YAML) differ, sorted by name."""
    old, new = fields(before), fields(after)
    differences = []
    for name in sorted(old.keys() | new.keys()):
        first, second = old.get(name, _ABSENT), new.get(name, _ABSENT)
        if second is _ABSENT:
            differences.append(ConfigChange(name, "removed", before=first))
        elif first is _ABSENT:
            differences.append(ConfigChange(name, "added", after=second))
        elif first != second:
            differences.append(ConfigChange(name, "changed", first, second))
    return differences


def unchanged(first: int, second: int) -> str:
    """Return the line about two attempts without a difference."""
    return f"attempts {first} and {second} have the same configuration"


def line(change: ConfigChange, arrow: str = "->") -> str:
    """Format a change in one line.

    The forms are ``~ trainer.per_device_parallelism 16 -> 8``, ``+ name after`` and ``- name before``.
    """
    if change.kind == "changed":
        return f"~ {change.name} {change.before} {arrow} {change.after}"
    return f"+ {change.name} {change.after}" if change.kind == "added" else f"- {change.name} {change.before}"


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings to dotted names."""
    if not isinstance(value, Mapping) or not value:
        return {prefix: value}
    return {
        name: item
        for key, inner in value.items()
        for name, item in _flat(inner, f"{prefix}.{key}" if prefix else str(key)).items()
    }
