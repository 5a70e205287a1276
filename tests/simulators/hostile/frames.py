"""Change the frames of a copy on their way out of the hostile host. Standard library only."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable
from typing import Any

from simulators.hostile.values import PATHS, RAW, Mutator, dumps, raw

HEADER = struct.Struct(">BI")
ITEM, DATA, FAILED, FINISH, IDLE = 1, 2, 3, 4, 5


def frame_bytes(kind: int, payload: bytes = b"") -> bytes:
    return HEADER.pack(kind, len(payload)) + payload


def item(path: str, content: bytes, **changes: Any) -> bytes:
    """Return the frames of an object that was not requested."""
    entry = {"path": path, "size": len(content), "sha256": hashlib.sha256(content).hexdigest(), "offset": 0}
    return frame_bytes(ITEM, json.dumps(dict(entry, length=len(content), **changes)).encode()) + frame_bytes(
        DATA, content
    )


FRAMES = (
    "unrequested", "unrequested", "unrequested", "renamed", "renamed", "changed item", "changed item", "twice",
    "flipped", "no data", "too much", "long frame", "unknown kind", "failed text", "after the end", "nested", "deep",
    "item not JSON", "offset", "truncated",
)  # fmt: skip


class Frames:
    """Copies frames from the real sender's stdout, with one change at the ``at``-th item."""

    def __init__(self, action: str, mutator: Mutator, at: int, write: Callable[[bytes], None], code: bytes) -> None:
        self.action, self.mutator, self.at, self.write, self.code = action, mutator, at, write, code
        self.items, self.changed = 0, False

    def copy(self, read: Callable[[int], bytes], note: Callable[[str], None]) -> None:
        while True:
            header = read(HEADER.size)
            if len(header) < HEADER.size:
                return
            kind, length = HEADER.unpack(header)
            payload = read(length)
            if kind == ITEM:
                self.items += 1
            now = (not self.changed and self.items > self.at) or (kind == FINISH and not self.changed)
            if not now or kind not in (ITEM, DATA, FINISH):
                self.write(header + payload)
                continue
            replaced = self._change(kind, payload)
            if replaced is not None:
                self.changed = True
                note(self.mutator.what)
            self.write(header + payload if replaced is None else replaced)

    def _change(self, kind: int, payload: bytes) -> bytes | None:
        rng, frame = self.mutator.rng, frame_bytes(kind, payload)
        name = rng.choice(PATHS[:20])
        action = self.action
        if action in ("unrequested", "after the end") and (kind == FINISH) == (action == "after the end"):
            self.mutator.what = ascii(name)[:60]
            extra = item(name, self.code)
            return frame + extra if action == "after the end" else extra + frame
        if kind == ITEM and action in ("renamed", "changed item", "offset"):
            return frame_bytes(ITEM, dumps(self._change_item(json.loads(payload), name)))
        if kind == ITEM and action == "item not JSON":
            return frame_bytes(ITEM, raw(payload, rng.choice(RAW[:8]), rng)[: 1 << 19])
        if kind == ITEM and action == "deep":
            return frame_bytes(ITEM, b"[" * 100000 + b"]" * 100000)
        if kind == ITEM and action in ("twice", "nested"):
            return frame + frame
        if kind == DATA and action == "twice":
            return frame + frame
        if kind == DATA and action == "flipped" and payload:
            return frame_bytes(DATA, bytes([payload[0] ^ 1]) + payload[1:])
        if kind == DATA and action == "no data":
            return frame_bytes(DATA, b"")
        if kind == DATA and action == "too much":
            return frame_bytes(DATA, payload + b"more")
        if action == "long frame":
            return HEADER.pack(rng.choice((ITEM, FAILED, DATA, 77)), 0xFFFFFFF0) + b"x" * 5000
        if action == "unknown kind":
            return frame_bytes(rng.choice((0, 6, 77, 255)), b"x" * 100)
        if action == "failed text":
            return frame_bytes(FAILED, (self.mutator.text() * 3).encode("utf-8", "surrogatepass") + b"\xff\xfe")
        if action == "truncated":
            return frame[: max(1, len(frame) // 2)]
        return None

    def _change_item(self, entry: dict[str, Any], name: str) -> Any:
        if self.action == "renamed":
            entry["path"], self.mutator.what = name, ascii(name)[:60]
        elif self.action == "offset":
            field = self.mutator.rng.choice(("offset", "length", "size"))
            entry[field] = self.mutator.rng.choice((-1, -(2**40), 2**62, 1.5, "0", None, 1 << 40))
            self.mutator.what = f"{field} {entry[field]!r}"
        else:
            return self.mutator.value(entry)
        return entry
