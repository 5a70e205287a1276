"""A file server on loopback with faults, and as much of a bucket's JSON API as reading needs."""

from __future__ import annotations

import hashlib
import json
import re
import urllib.parse
from collections.abc import Mapping
from typing import Any

from support.loopback import Loopback, Quiet


class FileServer(Loopback):
    """Serves ``files`` (name -> content) under ``url``; ``/storage/v1/b/<bucket>/o`` lists them as a bucket does."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.files = dict(files)
        self.requests: list[tuple[str, str]] = []  # method, path
        self.refusals: list[int] = []  # codes of the next answers
        self.breaks: list[int] = []  # after how many bytes the next answers to GET break off
        self.ranges = self.head = True
        self.sizes = True  # in answers to HEAD
        super().__init__(Handler, "files")

    def generation(self, name: str) -> str:
        return str(int(hashlib.sha256(self.files[name]).hexdigest()[:12], 16))


class Handler(Quiet):
    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        self.server_of.requests.append((self.command, self.path))
        if self.server_of.refusals:
            return self._send(self.server_of.refusals.pop(0), b"", {}, body)
        if not body and not self.server_of.head:
            return self._send(501, b"", {}, body)
        parts = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(parts.query))
        found = re.fullmatch(r"(?:/download)?/storage/v1/b/([^/]+)/o(?:/(.*))?", parts.path)
        if found and found[2] is None:
            return self._list(found[1], query.get("prefix", ""), int(query.get("pageToken", "0")))
        name = urllib.parse.unquote(found[2] if found else parts.path[1:])
        if name not in self.server_of.files:
            return self._send(404, b"", {}, body)
        if found and query.get("alt") != "media":
            return self._json(self._entry(found[1], name))
        self._file(self.server_of.files[name], self.server_of.generation(name), body)

    def _file(self, data: bytes, generation: str, body: bool) -> None:
        headers = {"ETag": f'"{generation}"', "x-goog-generation": generation}
        span = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")) if self.server_of.ranges else None
        if not span:
            return self._send(200, data, headers, body)
        first, last = int(span[1]), min(int(span[2] or len(data) - 1), len(data) - 1)
        if first >= len(data):
            return self._send(416, b"", {"Content-Range": f"bytes */{len(data)}"}, body)
        headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
        self._send(206, data[first : last + 1], headers, body)

    def _send(self, code: int, data: bytes, headers: Mapping[str, str], body: bool) -> None:
        sent = data
        if body and code < 300 and self.server_of.breaks:
            sent = data[: self.server_of.breaks.pop(0)]
        self.send_response(code)
        length = {"Content-Length": str(len(data))} if body or self.server_of.sizes else {}
        for key, value in {**headers, **length}.items():
            self.send_header(key, value)
        self.end_headers()
        if body:
            self.wfile.write(sent)

    def _json(self, value: Any) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"}, True)

    def _entry(self, bucket: str, name: str) -> dict[str, str]:
        size = str(len(self.server_of.files[name]))
        return {"bucket": bucket, "name": name, "size": size, "generation": self.server_of.generation(name)}

    def _list(self, bucket: str, prefix: str, first: int) -> None:
        """Return pages of two entries, so that a client that reads only the first page fails its test."""
        names = sorted(name for name in self.server_of.files if name.startswith(prefix))
        page: dict[str, Any] = {"items": [self._entry(bucket, name) for name in names[first : first + 2]]}
        if names[first + 2 :]:
            page["nextPageToken"] = str(first + 2)
        self._json(page)
