"""Optional digests of batches in a trainer: three lines of a training script.

    import midstream_tap                    # stays importable without midstream: see docs/how-to/trainers.md
    tap = midstream_tap.Tap()
    tap.batch(step, batch)                  # before the update; ``step`` counts updates from 0

Without ``MIDSTREAM_TAP`` in the environment it does nothing. Standard library only; tensors and arrays are read through
``tobytes`` or ``numpy``.
"""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any, Dict, List, Optional, Tuple, cast


class Tap:
    """Appends the digest of each batch that this rank consumes."""

    def __init__(self) -> None:
        path = os.environ.get("MIDSTREAM_TAP", "")
        self._rank = int(os.environ.get("RANK", "0"))
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644) if path else -1

    def batch(self, step: int, batch: object) -> None:
        """Record what update ``step`` (from 0) consumes; call it for each batch in turn.

        ``batch``: tensors, arrays, numbers, texts, lists or mappings of them.
        """
        if self._file < 0:
            return
        total = hashlib.sha256()
        _add(total, batch)
        line = json.dumps(
            {"step": int(step), "rank": self._rank, "digest": total.hexdigest(), "elements": _elements(batch)}
        )
        os.write(self._file, line.encode() + b"\n")


def _elements(value: Any) -> int:
    """Return how many numbers or texts a batch has: it grows with its examples."""
    items = _items(value)
    if items is not None:
        return sum(_elements(item) for _, item in items)
    if hasattr(value, "numel"):  # a tensor of torch
        return int(value.numel())
    return int(value.size) if hasattr(value, "tobytes") and hasattr(value, "size") else 1


def _items(value: object) -> Optional[List[Tuple[str, object]]]:
    """Return the items of a mapping or a list; None for any other value.

    The items of a mapping are sorted by name, those of a list have no names.
    """
    if isinstance(value, dict):
        fields = cast("Dict[object, object]", value)
        return sorted([(str(name), item) for name, item in fields.items()], key=lambda pair: pair[0])
    return [("", item) for item in cast("List[object]", value)] if isinstance(value, (list, tuple)) else None


def _add(total: Any, value: Any) -> None:
    items = _items(value)
    if items is not None:
        for name, item in items:
            total.update(name.encode())
            _add(total, item)
    elif hasattr(value, "detach"):  # a tensor of torch
        array = value.detach().cpu().contiguous()
        total.update(str(array.dtype).encode() + str(tuple(array.shape)).encode())
        as_bytes = array.new_empty(0).byte().dtype  # numpy has no bfloat16
        total.update(array.flatten().view(as_bytes).numpy().tobytes() if array.numel() else b"")
    elif hasattr(value, "tobytes"):
        total.update(str(getattr(value, "dtype", "")).encode() + value.tobytes())
    else:
        total.update(repr(value).encode())
