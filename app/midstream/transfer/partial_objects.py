"""Bytes of an object that the target of a copy has, and those that it lacks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from midstream.transfer.send_queue import CHUNK


def apart(size: int, chunks: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the (offset, length) of an object's chunks without overlaps, in order.

    Of two that overlap, the earlier one stays. Copies into a bucket write parts of several lengths.
    """
    separate: list[tuple[int, int]] = []
    end = 0
    for offset, length in sorted(chunks):
        if end <= offset < offset + length <= size:
            separate.append((offset, length))
            end = offset + length
    return separate


def gaps(size: int, chunks: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the (offset, length) of an object's bytes that ``chunks`` lack.

    No range is longer than a chunk. ``chunks`` are in order and do not overlap.
    """
    begin = 0
    for offset, length in [*chunks, (size, 0)]:
        for start in range(begin, offset, CHUNK):
            yield start, min(CHUNK, offset - start)
        begin = offset + length
