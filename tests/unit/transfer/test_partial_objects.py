"""Bytes that the target of a copy has of an object, and those that it lacks."""

from __future__ import annotations

import random

import pytest

from midstream.transfer.partial_objects import apart, gaps
from midstream.transfer.send_queue import CHUNK


@pytest.mark.parametrize(
    ("size", "found", "used", "missing"),
    [
        (2 * CHUNK + 5, [], [], [(0, CHUNK), (CHUNK, CHUNK), (2 * CHUNK, 5)]),
        (2 * CHUNK + 5, [(CHUNK, CHUNK)], [(CHUNK, CHUNK)], [(0, CHUNK), (2 * CHUNK, 5)]),
        (3 * CHUNK, [(0, 2 * CHUNK), (CHUNK, CHUNK)], [(0, 2 * CHUNK)], [(2 * CHUNK, CHUNK)]),
        (CHUNK, [(CHUNK, 5), (0, 0), (-5, CHUNK), (5, CHUNK)], [], [(0, CHUNK)]),  # of a hostile target
        (0, [], [], []),
    ],
)
def test_chunks_and_gaps(
    size: int, found: list[tuple[int, int]], used: list[tuple[int, int]], missing: list[tuple[int, int]]
) -> None:
    assert apart(size, found) == used
    assert list(gaps(size, used)) == missing


def test_every_byte_is_in_one_chunk_or_gap() -> None:
    rng = random.Random(5)
    for _ in range(200):
        size = rng.randrange(40)
        found = [(rng.randrange(-2, 45), rng.randrange(12)) for _ in range(rng.randrange(8))]
        used = apart(size, found)
        pieces = sorted([*used, *gaps(size, used)])
        assert [offset for offset, _ in pieces] == [sum(length for _, length in pieces[:i]) for i in range(len(pieces))]
        assert sum(length for _, length in pieces) == size
