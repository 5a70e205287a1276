"""Files behind http(s), read as a stream that reconnects. Standard library only."""

from __future__ import annotations

import http.client
import io
import time
import urllib.error
import urllib.parse
import urllib.request

from midstream_engine.data.errors import DataError, SourceNotFoundError
from midstream_engine.data.sources.source_file import SourceFile

TIMEOUT = 60.0  # seconds without a byte
ATTEMPTS = 6  # consecutive requests without progress
FIRST_DELAY = 0.5  # seconds before the second attempt; doubles with each
_ABSENT = (403, 404, 410)  # a bucket without permission to list answers 403
_RETRIED = (408, 425, 429, 500, 502, 503, 504)


def describe(url: str) -> SourceFile:
    """Return what the server reports about ``url``.

    Raises:
        DataError: The server has no such file or does not respond.
    """
    if any(sign in url for sign in "*["):
        raise DataError(f"data: {url!r}: https has no listing for a glob (hint: name the files with braces)")
    response = _request(url, {}, method="HEAD")
    if response is None:  # a server without HEAD
        response = _request(url, {"Range": "bytes=0-0"})
    assert response is not None
    with response:
        total = response.headers.get("Content-Range", "").rpartition("/")[2]
        size = total if response.status == 206 else response.headers.get("Content-Length", "")
        name = urllib.parse.urlsplit(url).path.rpartition("/")[2]
        return SourceFile(url, name, int(size) if size.isdecimal() else -1, _version(response))


def get(url: str) -> bytes:
    """Return the bytes of a small file.

    Raises:
        SourceNotFoundError: There is no such file, or it is not readable.
    """
    with open_stream(SourceFile(url, "", -1, "")) as file:
        return file.read()


def open_stream(source: SourceFile) -> io.BufferedReader:
    """Open ``source`` as a stream of bytes."""
    return io.BufferedReader(_Stream(source), 1 << 18)


def _version(response: http.client.HTTPResponse) -> str:
    return response.headers.get("ETag") or response.headers.get("Last-Modified") or ""


def _request(url: str, headers: dict[str, str], method: str = "GET") -> http.client.HTTPResponse | None:
    """Return the response after at most ``ATTEMPTS`` requests.

    None if the server does not support the method.
    """
    delay = FIRST_DELAY
    for attempt in range(ATTEMPTS):
        try:
            # Identity: byte ranges must be those of the stored file.
            request = urllib.request.Request(url, headers={"Accept-Encoding": "identity", **headers}, method=method)
            return urllib.request.urlopen(request, timeout=TIMEOUT)
        except urllib.error.HTTPError as error:
            error.close()
            if method == "HEAD" and error.code in (403, 405, 501):
                return None
            if error.code not in _RETRIED or attempt == ATTEMPTS - 1:
                kind = SourceNotFoundError if error.code in _ABSENT else DataError
                raise kind(f"data: {url}: HTTP {error.code} {error.reason}") from None
        except (OSError, http.client.HTTPException) as error:
            if attempt == ATTEMPTS - 1:
                reason = getattr(error, "reason", None) or error
                raise DataError(f"data: {url}: {reason} ({ATTEMPTS} attempts)") from None
        except ValueError as error:
            raise DataError(f"data: {url}: {error}") from None
        time.sleep(delay)
        delay *= 2
    raise AssertionError


class _Stream(io.RawIOBase):
    """HTTP stream that continues after a lost connection if the file is unchanged."""

    def __init__(self, source: SourceFile) -> None:
        self._source, self._position = source, 0
        self._end = source.size  # bytes of the file; -1: not known
        self._response: http.client.HTTPResponse | None = None
        self._idle = 0  # consecutive connections without data
        self._ended = False

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        while not self._ended:
            if self._response is None:
                self._connect()
            assert self._response is not None
            try:
                count = self._response.readinto(buffer)
            except (OSError, http.client.HTTPException):
                count = 0
                broken = True
            else:
                # http.client ends a truncated response like a complete one.
                broken = not count and self._position < self._end
            if count:
                self._position += count
                self._idle = 0
                return count
            self._drop()
            self._ended = not broken
            self._idle += broken
            if self._idle == ATTEMPTS:
                raise DataError(f"data: {self._source.path}: breaks off at byte {self._position}")
        return 0

    def close(self) -> None:
        self._drop()
        super().close()

    def _drop(self) -> None:
        if self._response is not None:
            self._response.close()
            self._response = None

    def _connect(self) -> None:
        headers = {"Range": f"bytes={self._position}-"} if self._position else {}
        response = _request(self._source.path, headers)
        assert response is not None
        self._response = response
        if self._source.version and _version(response) not in ("", self._source.version):
            raise DataError(f"data: {self._source.path} has changed while it was read (hint: start again)")
        if self._position and response.status != 206:  # the server has no ranges: read up to the position
            position = self._position
            while position:
                position -= len(response.read(min(position, 1 << 20))) or position
        if self._end < 0 and response.length is not None:  # a server that reports no size to HEAD
            self._end = self._position + response.length
