"""Bodies of answers, read into memory that the caller has, without a copy between."""

from __future__ import annotations

from collections.abc import Callable
from http.client import HTTPException

from midstream_core.object_store.client_library import Response

Room = Callable[[int], memoryview]  # number of bytes that arrived -> memory for those that follow
Take = Callable[[memoryview], None]


def receive(response: Response, length: int, room: Room, take: Take, failures: tuple[type[Exception], ...]) -> int:
    """Receive a body, block by block; return the number of bytes that arrived.

    Fewer than ``length`` bytes arrive if the body ends early or breaks off.

    The connection goes back to its pool, or is closed where the body was not read to its end. The ``readinto`` of
    botocore and urllib3 copies twice, and google-cloud-storage reads 8 KiB at a time; the response of the standard
    library below them reads from the socket into place.

    Args:
        response: Answer of urllib3; its body was not read. A content encoding is not decoded.
        length: Bytes of the body.
        room: Returns the memory of the next block.
        take: Called with each block that arrived. Its errors are raised.
        failures: Errors of a connection that broke.
    """
    readinto = getattr(getattr(response, "_fp", None), "readinto", response.readinto)
    arrived = 0
    try:
        while arrived < length:
            block = room(arrived)[: length - arrived]
            try:
                count = readinto(block)
            except (OSError, HTTPException, *failures):
                break
            if not count:
                break
            arrived += count
            take(block[:count])
    except BaseException:
        response.close()
        raise
    if arrived == length and response.isclosed():
        response.release_conn()
    else:
        response.close()
    return arrived
