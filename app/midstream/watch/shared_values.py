"""Equal JSON values stored once.

Runs of one fleet repeat their hosts, devices and versions.
"""

from __future__ import annotations

import marshal
from typing import Any

REMEMBERED = 8 << 20  # bytes of values; past them all are forgotten, and what was shared stays shared
LONGEST = 4096  # bytes of a value: hosts may report anything
OVERHEAD = 150  # bytes of memory of a remembered value, besides its own
KEY_FORMAT = 2  # of marshal: equal values have equal bytes


class SharedValues:
    """Replacement of JSON values by equal ones of earlier lines. Not thread-safe.

    Callers must not change the values.

    A run of eight devices takes 2 kB instead of 6. Numbers with a fraction are times and losses, which do not repeat:
    neither these numbers nor values that contain them are remembered.
    """

    def __init__(self) -> None:
        self._known: dict[Any, Any] = {}
        self._size = 0

    def share(self, value: Any) -> Any:
        """Return an equal value, whose parts are shared."""
        if self._size > REMEMBERED:
            self._known.clear()
            self._size = 0
        return self._share(value)[0]

    def _share(self, value: Any) -> tuple[Any, bool]:
        """Return the shared value, and whether it may be remembered."""
        kind = type(value)
        if kind is str:
            return self._remember(value, value), True
        if kind is not list and kind is not dict:
            return value, kind is not float
        key = marshal.dumps(value, KEY_FORMAT)
        earlier = self._known.get(key)
        if earlier is not None:
            return earlier, True
        parts = [self._share(element) for element in (value if kind is list else value.values())]
        shared: Any = [element for element, _ in parts]
        if kind is dict:
            shared = dict(zip((self._remember(name, name) for name in value), shared, strict=True))
        repeats = all(may_repeat for _, may_repeat in parts)
        return (self._remember(key, shared) if repeats else shared), repeats

    def _remember(self, key: str | bytes, value: Any) -> object:
        """Return the value known by ``key``; store ``value`` as known if there was none."""
        shared = self._known.get(key)
        if shared is not None:
            return shared
        if len(key) <= LONGEST:
            self._known[key] = value
            self._size += 2 * len(key) + OVERHEAD
        return value
