"""Permitted contents of each kind of copy: paths, sizes and counts.

A source lists what it has; that list is data from another machine. Both receivers apply this one: the operator's
program before it requests anything, and the program on the target before it writes anything. This module imports
little, because every stream of a copy begins with an interpreter that reads it.
"""

from __future__ import annotations

import re
from typing import Dict, Iterable, List, Pattern, Set, Tuple, cast

from midstream_core.json_types import JsonValue
from midstream_host.copy_items import HistoryObject

CHECKPOINT = "checkpoint"  # the objects of one checkpoint: docs/reference/checkpoint-format.md
CHECKPOINTS = "checkpoints"  # the same of checkpoints that are being saved; paths begin with the checkpoint's name
DATA = "data"  # a token cache, data that another trainer prepared, or the files of a tokenizer
HISTORY = "history"  # config, metrics, statuses, logs and TensorBoard's files of a run

COUNT = 1 << 20  # objects of one copy
PATH_BYTES = 1024
LOG_TAIL = 1 << 20  # bytes of each log that travel: its end
_MIB, _GIB, _TIB = 1 << 20, 1 << 30, 1 << 40
_SHA256 = re.compile(r"[0-9a-f]{64}")

# Part of an array's name: docs/reference/checkpoint-format.md.
_PART = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}"
_TOKENIZER = (
    r"(?:tokenizer\.json|tokenizer_config\.json|tokenizer\.model|special_tokens_map\.json|added_tokens\.json"
    r"|vocab\.json|merges\.txt|chat_template\.jinja|generation_config\.json)"
)
# Files of another trainer: what it has written, or what its run needs, under their own names.
_OTHER = r"files(?:/(?!\.{1,2}(?:/|$))[^/\x00-\x1f\x7f]{1,255}){1,32}"
_CHECKPOINT = (
    (r"arrays(?:/{0}){{1,64}}/c(?:/[0-9]{{1,12}}){{1,32}}".format(_PART), _TIB),  # most objects: compared first
    (r"arrays(?:/{0}){{1,64}}/zarr\.json".format(_PART), _MIB),
    (r"train\.json", _GIB),
    (r"small\.safetensors", _TIB),
    (_OTHER, _TIB),
)
_DATA = (
    (_OTHER, 64 * _TIB),
    (r"tokens-[0-9]{5,9}\.bin", _TIB),
    (r"offsets\.bin", _TIB),
    (r"[0-9]{1,9}\.(?:doc_idx|sample_idx|shuffle_idx)\.npy", 64 * _TIB),  # GPT-NeoX
    (r"[0-9]{1,9}\.(?:bin|idx)", 64 * _TIB),
    (r"blend\.bin", 64 * _TIB),
    (r"[0-9]{1,9}/shard_ledger\.json", _GIB),  # Levanter; its arrays are zarr 2 or zarr 3
    (r"[0-9]{1,9}/[0-9]{1,9}/input_ids(?:/(?:[A-Za-z0-9_-]{1,64}|\.zarray|\.zgroup|\.zattrs|\.zmetadata|zarr\.json"
     r"|[0-9]+(?:\.[0-9]+)+)){1,16}", 64 * _TIB),
    (r"(?:tokenizer/)?{}".format(_TOKENIZER), _GIB),
)  # fmt: skip
_ATTEMPT = r"attempts/[0-9]{3,9}/"
_HISTORY = (
    (r"run\.yaml", _MIB),
    (_ATTEMPT + r"metrics\.jsonl", _TIB),
    (_ATTEMPT + r"status-[0-9]{1,6}\.json", _MIB),
    (_ATTEMPT + r"restore\.json", 16 * _MIB),
    (_ATTEMPT + r"log-[0-9]{1,6}\.txt", LOG_TAIL),
    # TensorBoard's, in folders of the run directory that are not the run's own and take no record's place; no name that
    # Python would import.
    (r"(?!(?:attempts|checkpoints|pins|[^/]*\.(?:json|yaml))/)(?:[A-Za-z0-9_][A-Za-z0-9_.=,@+-]{0,254}/){0,16}"
     r"events\.out\.tfevents\.[0-9]{1,20}\.[A-Za-z0-9_.-]{1,200}(?<!\.py)(?<!\.pyc)(?<!\.so)(?<!\.pth)", _TIB),
)  # fmt: skip


def _compiled(rules: Iterable[Tuple[str, int]], before: str = "") -> List[Tuple[Pattern[str], int]]:
    return [(re.compile(before + pattern), most) for pattern, most in rules]


_RULES: Dict[str, List[Tuple[Pattern[str], int]]] = {
    CHECKPOINT: _compiled(_CHECKPOINT),
    CHECKPOINTS: _compiled(_CHECKPOINT, r"step-[0-9]{1,18}-a[0-9]{3,9}(?:-s[0-9]{1,9})?/"),
    DATA: _compiled(_DATA),
    HISTORY: _compiled(_HISTORY),
}
_NAMES = {CHECKPOINT: "a checkpoint", CHECKPOINTS: "a checkpoint", DATA: "prepared data", HISTORY: "a run's history"}


class NotAllowedError(ValueError):
    """A path, size or hash that this kind of copy does not contain.

    ``path`` names the object, where one is known.
    """

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(message)
        self.path = path


def largest(kind: str, path: JsonValue) -> int:
    """Return the largest size in bytes that the object of this path may have.

    Raises NotAllowedError where the kind has no such path.
    """
    if isinstance(path, str) and len(path) <= PATH_BYTES:
        for pattern, most in _RULES[kind]:
            if pattern.fullmatch(path):
                return most
    raise NotAllowedError(
        "{} is no part of {}".format(shown(path), _NAMES[kind]), path if isinstance(path, str) else ""
    )


def checked(kind: str, entry: JsonValue) -> HistoryObject:
    """Return ``{path, size, sha256}`` of an entry, and ``offset`` where it has one.

    Raises NotAllowedError where this kind of copy does not contain it.
    """
    if not isinstance(entry, dict):
        raise NotAllowedError("an entry that is no object, in the list of {}".format(_NAMES[kind]))
    fields = entry
    path, size, sha256, offset = (fields.get(name) for name in ("path", "size", "sha256", "offset"))
    most = largest(kind, path)
    if type(size) is not int or not 0 <= size <= most:
        what = "{} has a size of {}; at most {:,} bytes".format(shown(path), ascii(size)[:50], most)
        raise NotAllowedError(what, str(path))
    if not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
        raise NotAllowedError("{} has no SHA-256".format(shown(path)), str(path))
    checked_object: HistoryObject = {"path": str(path), "size": size, "sha256": sha256}
    if offset is not None:
        if type(offset) is not int or not 0 <= offset < 1 << 62:
            raise NotAllowedError("{} begins at {}".format(shown(path), ascii(offset)[:50]), str(path))
        checked_object["offset"] = offset
    return checked_object


def check_all(kind: str, entries: object) -> List[HistoryObject]:
    """All entries of a list, each `checked`, no path twice. NotAllowedError."""
    listed = cast("List[JsonValue]", entries) if isinstance(entries, list) else None
    if listed is None or len(listed) > COUNT:
        raise NotAllowedError("no list of at most {:,} objects".format(COUNT))
    checked_objects = [checked(kind, entry) for entry in listed]
    seen: Set[str] = set()
    for entry in checked_objects:
        if entry["path"] in seen:
            raise NotAllowedError("{} is named twice".format(shown(entry["path"])), entry["path"])
        seen.add(entry["path"])
    return checked_objects


def shown(value: JsonValue) -> str:
    """Text of another machine, short and printable."""
    text = value if isinstance(value, str) and value.isprintable() and value.isascii() and value else ascii(value)
    return text if len(text) <= 200 else text[:200] + "..."
