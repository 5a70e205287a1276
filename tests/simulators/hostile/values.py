"""Seeded hostile values: changes of JSON, malformed lines, text that a terminal or a shell would interpret.

The hostile host's interpreter imports it: standard library only.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

DEEP = "@@DEEP@@"  # stands for JSON that is nested deeper than a parser likes

ESCAPES = (
    "\x1b]52;c;ZXZpbA==\x07", "\x1b[2J\x1b[H", "\x1b]0;owned\x07", "\x9b31m", "\u202egnp.exe", "\x7f\x08\x08",
    "two\nlines", "\r\nmidstream: done", "\u2066a\u2069", "tab\tand\vmore", "\x1bP0;0|17/61\x1b\\",
)  # fmt: skip
PATHS = (
    "../../../../escaped", "/tmp/escaped", "..", ".", "", "a//b", "a/../../b", "./a", "a\0b", "a\nb", ".incoming/x",
    "yaml.py", "sitecustomize.py", "json.py", "numpy.py", "evil.pth", "setup.py", "attempts/001/yaml.py", "run.sh",
    "attempts/001/../../../../escaped", "model/yaml.py", "x" * 5000, "~/escaped", "-rf", "\ud800", "\u00e9\u0301",
)  # fmt: skip
VALUES = (
    None, True, False, 0, -1, 7, 2**63, 10**300, -(2**31), 1.5, float("nan"), float("inf"), -1e308, "", "7", "x",
    [], {}, [[]], [None], {"a": {}}, {"event": "done"}, [1, None], DEEP, "y" * (1 << 20), list(range(20000)),
)  # fmt: skip


class Mutator:
    """Seeded changes of JSON values. ``canary``: a shell command line that leaves a trace where it is run."""

    def __init__(self, rng: random.Random, canary: str = "touch /nonexistent/canary") -> None:
        self.rng = rng
        self.shell = (f"$({canary})", f"`{canary}`", f"; {canary} #", f"x\n{canary}\n", f"| {canary}")
        self.what = ""

    def text(self) -> str:
        """Return a hostile string."""
        kind = self.rng.choice((ESCAPES, ESCAPES, PATHS, PATHS, self.shell))
        return self.rng.choice(kind)

    def value(self, value: Any) -> Any:
        """Return ``value`` with one change; ``what`` describes it."""
        places = list(_places(value))
        path, found = self.rng.choice(places[:2000])
        actions = ["replace", "replace", "text"]
        if isinstance(found, dict):
            actions += ["drop", "add", "add"] if found else ["add"]
        if isinstance(found, list):
            actions += ["grow", "swap", "empty", "element"]
        if isinstance(found, str):
            actions += ["append", "append"]
        if isinstance(found, (int, float)) and not isinstance(found, bool):
            actions += ["number", "number"]
        action = self.rng.choice(actions)
        self.what = f"{action} at {'/'.join(map(str, path)) or 'the top'}"
        return _put(value, path, self._changed(action, found))

    def _changed(self, action: str, found: Any) -> Any:
        rng = self.rng
        if action == "replace":
            new = rng.choice(VALUES)
            self.what += f" with {repr(new)[:40]}"
            return new
        if action in ("text", "append"):
            new = self.text()
            self.what += f" of {ascii(new)[:40]}"
            return (found + new) if action == "append" else new
        if action == "number":
            return rng.choice((-found, found + 1, found * 10**6, -1, 0, 1e400, str(found)))
        if action == "drop":
            name = rng.choice(sorted(found))
            self.what += f" of {ascii(name)[:40]}"
            return {key: item for key, item in found.items() if key != name}
        if action == "add":
            return dict(
                found, **{rng.choice((self.text(), "value", "error", "event", "__class__")): rng.choice(VALUES)}
            )
        if action == "grow":
            return (found or [rng.choice(VALUES)]) * rng.choice((2, 3, 50))
        if action == "swap":
            return [rng.choice(VALUES) for _ in found] or [None]
        if action == "element":
            return [*found, rng.choice((*VALUES, self.text()))]
        return []


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    yield path, value
    items = value.items() if isinstance(value, dict) else enumerate(value[:50]) if isinstance(value, list) else ()
    for key, item in items:
        yield from _places(item, (*path, key))


def _put(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = _put(value[path[0]], path[1:], new)
    return copy


def dumps(value: Any) -> bytes:
    """Serialize JSON as Python does, and expand the deeply nested placeholder."""
    text = json.dumps(value)
    return text.replace(f'"{DEEP}"', "[" * 100000 + "]" * 100000).encode()


RAW = (
    "empty",
    "truncated",
    "garbage",
    "binary",
    "deep",
    "twice",
    "duplicate key",
    "scalar",
    "huge",
    "spaces",
    "no end",
)


def raw(line: bytes, action: str, rng: random.Random) -> bytes:
    """Return a line that is malformed or unusual JSON, without its newline."""
    if action == "empty":
        return b""
    if action == "truncated":
        return line[: rng.randrange(len(line) or 1)]
    if action == "garbage":
        return b"Welcome to \x1b]52;c;aGk=\x07host!\x1b[2J"
    if action == "binary":
        return bytes(rng.randrange(256) for _ in range(2000)).replace(b"\n", b"\0")
    if action == "deep":
        return b"[" * 200000 + b"]" * 200000
    if action == "twice":
        return line + b"\n" + line
    if action == "duplicate key":
        return (
            line[:-1] + b', "value": 7, "event": "done", "epoch": "7", "files": [3]}' if line[-1:] == b"}" else line * 2
        )
    if action == "scalar":
        return rng.choice((b"7", b'"x"', b"null", b"[]", b"NaN", b"true", b"-" + b"9" * 5000))
    if action == "huge":
        return line[:-1] + b', "more": "' + b"z" * (100 << 20) + b'"}'
    if action == "spaces":
        return b" " * (100 << 20)
    return line
