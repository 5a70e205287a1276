"""Which items of a stream the operator has requested: each carries a tag that only the operator can make.

The bytes of a copy come from the source, and so do the frames that say which object they belong to. The receiver gets
a key over its own connection with the operator; the operator tags each item with it (HMAC-SHA256 over the item's number
in the stream, path, size, SHA-256, offset and length) and hands the tagged item to the source, which passes it on. A
source can neither make an item nor change one, send one twice, leave one out, or send those of another stream. It costs
no round trip: the receiver has to know nothing in advance.
"""

from __future__ import annotations

import hmac
import json
import os
from typing import Any, Dict

from midstream.remote.copy import allowlist
from midstream.remote.copy.frames import Problem

TAG = "tag"
_FIELDS = ("path", "size", "sha256", "offset", "length")


def new_key() -> str:
    """A key for one stream, in hex."""
    return os.urandom(32).hex()


class RequestedItems:
    """The items of one stream, in their order: the operator tags them, the receiver checks them."""

    def __init__(self, key: str):
        self._key = bytes.fromhex(key)
        self._number = 0

    def tagged(self, item: Dict[str, Any]) -> Dict[str, Any]:
        """The next item with its tag."""
        found = dict(item)
        found[TAG] = self._next([item[name] for name in _FIELDS])
        return found

    def checked(self, kind: str, payload: bytes) -> Dict[str, Any]:
        """The item of a frame. Problem ``unrequested`` where it is not the next one that was requested, or where a copy
        of this ``kind`` contains no such object."""
        try:
            item = json.loads(payload.decode())
            tag, values = item[TAG], [item[name] for name in _FIELDS]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise Problem("unrequested", message="a frame that is no item") from None
        path, size, _, offset, length = values
        expected = self._next(values).encode()
        if not isinstance(tag, str) or not hmac.compare_digest(tag.encode("utf-8", "replace"), expected):
            what = "it was not requested, or not like this"
            raise Problem("unrequested", path=allowlist.shown(path), message=what)
        try:
            item = allowlist.checked(kind, {"path": path, "size": size, "sha256": values[2]})
        except allowlist.NotAllowed as error:
            raise Problem("unrequested", path=allowlist.shown(path), message=str(error)) from None
        if type(offset) is not int or type(length) is not int or not 0 <= offset <= offset + length <= size:
            what = "bytes {} from {} of {}".format(length, offset, size)
            raise Problem("unrequested", path=path, message=what)
        item["offset"], item["length"] = offset, length
        return item

    def _next(self, values: Any) -> str:
        # One text for one item: once the types are right, only the path, which stands last, can hold a space.
        path, size, sha256, offset, length = values
        text = "{} {} {} {} {} {}".format(self._number, size, sha256, offset, length, path)
        self._number += 1
        return hmac.digest(self._key, text.encode("utf-8", "backslashreplace"), "sha256").hex()
