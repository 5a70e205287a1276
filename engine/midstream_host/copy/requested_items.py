"""Authentication of a stream's items: each has a tag that only the app can make.

The frames that name an object come from the source, as its bytes do. The app sends the receiver a key over its own
connection, tags each item with it (HMAC-SHA256 over the item's number in the stream, path, size, SHA-256, offset and
length) and sends the tagged item to the source, which passes it on. A source can neither make an item nor change one,
send one twice, leave one out, or send those of another stream. This needs no additional round trip.
"""

from __future__ import annotations

import hmac
import json
import os
from typing import Any, Dict

from midstream_host import allowlist
from midstream_host.copy.frames import ProblemError
from midstream_host.copy_items import CopyItem

TAG = "tag"
_FIELDS = ("path", "size", "sha256", "offset", "length")


def new_key() -> str:
    """A key for one stream, in hex."""
    return os.urandom(32).hex()


class RequestedItems:
    """The items of one stream, in order: the app tags them, the receiver checks them."""

    def __init__(self, key: str) -> None:
        self._key = bytes.fromhex(key)
        self._number = 0

    def tagged(self, item: CopyItem) -> Dict[str, object]:
        """Return the next item with its tag."""
        values = [item["path"], item["size"], item["sha256"], item["offset"], item["length"]]
        return dict(item, **{TAG: self._next(values)})

    def checked(self, kind: str, payload: bytes) -> CopyItem:
        """Return the item of a frame.

        Raises ProblemError ``unrequested`` unless it is the next requested one and allowed in a copy of this ``kind``.
        """
        try:
            sent: Any = json.loads(payload.decode())
            tag, values = sent[TAG], [sent[name] for name in _FIELDS]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise ProblemError("unrequested", message="a frame that is no item") from None
        path, size, _, offset, length = values
        expected = self._next(values).encode()
        if not isinstance(tag, str) or not hmac.compare_digest(tag.encode("utf-8", "replace"), expected):
            what = "it was not requested, or not like this"
            raise ProblemError("unrequested", path=allowlist.shown(path), message=what)
        try:
            item = allowlist.checked(kind, {"path": path, "size": size, "sha256": values[2]})
        except allowlist.NotAllowedError as error:
            raise ProblemError("unrequested", path=allowlist.shown(path), message=str(error)) from None
        if type(offset) is not int or type(length) is not int or not 0 <= offset <= offset + length <= size:
            what = "bytes {} from {} of {}".format(length, offset, size)
            raise ProblemError("unrequested", path=path, message=what)
        return {
            "path": item["path"],
            "size": item["size"],
            "sha256": item["sha256"],
            "offset": offset,
            "length": length,
        }

    def _next(self, values: Any) -> str:
        # One text for one item: once the types are right, only the path, which stands last, can hold a space.
        path, size, sha256, offset, length = values
        text = "{} {} {} {} {} {}".format(self._number, size, sha256, offset, length, path)
        self._number += 1
        return hmac.digest(self._key, text.encode("utf-8", "backslashreplace"), "sha256").hex()
