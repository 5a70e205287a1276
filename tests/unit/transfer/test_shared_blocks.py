"""Bytes that one process passes on to another in shared memory."""

from __future__ import annotations

import random
import threading

import pytest

from midstream_host.copy.frames import ProblemError
from midstream_host.copy.shared_blocks import BLOCK, BLOCKS, LIMIT, SharedBlocks


def filled(blocks: SharedBlocks, data: bytes, rng: random.Random) -> None:
    """Fill blocks with pieces of any size, then end the stream."""
    at = 0
    while at < len(data):
        piece = data[at : at + rng.choice([1, 5, rng.randint(1, BLOCK), BLOCK])]
        blocks.empty_block()[: len(piece)] = piece
        blocks.filled(len(piece))
        at += len(piece)
    blocks.close_filling()


@pytest.mark.parametrize("seed", range(4))
def test_bytes_arrive_in_order_across_blocks(seed: int) -> None:
    rng = random.Random(seed)
    print("seed", seed)
    data = rng.randbytes(3 * BLOCKS * BLOCK + rng.randint(0, 1000))
    blocks = SharedBlocks()
    other = threading.Thread(target=filled, args=(blocks, data, random.Random(seed + 100)))
    other.start()
    found = bytearray()
    while len(found) < len(data):
        left = len(data) - len(found)
        count = min(left, rng.choice([0, 1, 5, 65536, LIMIT]))
        found += blocks.exactly(count) if rng.random() < 0.7 else blocks.some(count)
    assert found == data
    with pytest.raises(ProblemError, match="truncated"):
        blocks.exactly(1)
    other.join()


def test_frame_that_is_longer_than_any_is_refused() -> None:
    with pytest.raises(ProblemError, match="protocol"):
        SharedBlocks().exactly(LIMIT + 1)


def test_writer_that_has_ended_is_not_waited_for() -> None:
    blocks = SharedBlocks()
    blocks.fill_only()  # as if the other process had ended
    blocks.empty_block()
    with pytest.raises(BrokenPipeError):
        blocks.filled(1)
