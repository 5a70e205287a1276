"""Bodies of answers, read into memory that the caller has, without a copy between."""

from __future__ import annotations

from http.client import HTTPException
from typing import Any

BLOCK = 1 << 20  # bytes of one read, so that a broken connection leaves what arrived before


def fill(body: Any, into: memoryview, failures: tuple[type[Exception], ...]) -> int:
    """Fill ``into`` with a body; return the number of bytes that arrived.

    They are fewer where the body ended before or broke off.

    The connection goes back to its pool, or is closed where the body was not read to its end. The ``readinto`` of
    botocore and urllib3 copies twice; the response of the standard library below them reads from the socket into place.

    Args:
        body: Body of an answer of botocore that was not read, and has no content encoding.
        into: Memory for the body.
        failures: Errors of a connection that broke.
    """
    response = body._raw_stream  # noqa: SLF001  there is no public way to the socket
    readinto = getattr(getattr(response, "_fp", None), "readinto", response.readinto)
    arrived = 0
    try:
        while arrived < len(into):
            count = readinto(into[arrived : arrived + BLOCK])
            if not count:
                break
            arrived += count
    except (OSError, HTTPException, *failures):
        response.close()
        return arrived
    if arrived == len(into) and response.isclosed():
        response.release_conn()
    else:
        response.close()
    return arrived
