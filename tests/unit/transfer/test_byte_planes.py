"""Packed chunks: lossless, of the expected share, and safe to unpack whatever a sender writes."""

from __future__ import annotations

import contextlib
import random
import struct
import zlib

import numpy as np
import pytest

from midstream_host.copy import byte_planes
from midstream_host.copy.byte_planes import CHUNK, MAX_PACKED, MalformedError, PlaneLayout, layout_of, pack, unpack


def numbers(seed: int, count: int = CHUNK // 4) -> np.ndarray:
    """Float32 values [count] that look like weights."""
    return (np.random.default_rng(seed).standard_normal(count) * 0.02).astype(np.float32)


def bfloat16(seed: int) -> np.ndarray:
    """The bits of bfloat16 values that look like weights: uint16 [CHUNK / 2]."""
    return (numbers(seed, CHUNK // 2).view(np.uint32) >> 16).astype(np.uint16)


@pytest.mark.parametrize(
    ("data", "width", "most"),
    [
        pytest.param(numbers(0).tobytes(), 4, 0.87, id="float32"),
        pytest.param((numbers(1) ** 2).tobytes(), 4, 0.87, id="second moments"),
        pytest.param(bfloat16(2).tobytes(), 2, 0.72, id="bfloat16"),
        pytest.param(np.arange(CHUNK // 8, dtype=np.int64).tobytes(), 8, 0.30, id="int64"),
        pytest.param(bytes(CHUNK), 1, 0.01, id="zeros"),
    ],
)
def test_layout_fits_the_type_of_the_numbers(data: bytes, width: int, most: float) -> None:
    layout = layout_of(data)
    assert layout is not None
    packed = pack(data, layout)
    assert layout.width == width
    assert len(packed) <= most * len(data)
    assert abs(layout.kept - len(packed) / len(data)) < 0.05, "the sample's share is that of the chunk"
    assert unpack(memoryview(packed)) == data


def test_random_bytes_have_no_layout() -> None:
    assert layout_of(random.Random(3).randbytes(CHUNK)) is None
    assert layout_of(b"") is None


@pytest.mark.parametrize("seed", range(40))
def test_any_layout_packs_any_bytes_losslessly(seed: int) -> None:
    rng = random.Random(seed)
    print(f"seed {seed}")
    data = rng.choice((rng.randbytes, bytes))(rng.choice((1, 2, 3, 7, 4097, CHUNK - 1, CHUNK)))
    width = rng.choice(byte_planes.WIDTHS)
    packed = pack(data, PlaneLayout(width, rng.randrange(1 << width), 1.0))
    assert len(packed) <= MAX_PACKED
    assert unpack(memoryview(packed)) == data


def deflated(data: bytes) -> bytes:
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
    return deflate.compress(data) + deflate.flush()


@pytest.mark.parametrize(
    "packed",
    [
        pytest.param(b"", id="empty"),
        pytest.param(struct.pack(">BBI", 4, 0, 8), id="no planes"),
        pytest.param(struct.pack(">BBI", 3, 0, 3) + (struct.pack(">I", 1) + b"x") * 3, id="width"),
        pytest.param(struct.pack(">BBI", 1, 2, 1) + struct.pack(">I", 1) + b"x", id="mask"),
        pytest.param(struct.pack(">BBI", 1, 0, 0) + struct.pack(">I", 0), id="no bytes"),
        pytest.param(struct.pack(">BBI", 1, 0, CHUNK + 1) + struct.pack(">I", CHUNK + 1) + bytes(CHUNK + 1), id="long"),
        pytest.param(struct.pack(">BBI", 1, 0, 2) + struct.pack(">I", 1) + b"x", id="short plane"),
        pytest.param(struct.pack(">BBI", 1, 0, 1) + struct.pack(">I", 1) + b"xy", id="bytes behind"),
        pytest.param(struct.pack(">BBI", 1, 1, 4) + struct.pack(">I", 4) + b"\xff\xff\xff\xff", id="no deflate"),
        pytest.param(struct.pack(">BBI", 1, 1, 9) + struct.pack(">I", 10) + deflated(bytes(4))[:10], id="too few"),
        pytest.param(
            struct.pack(">BBI", 1, 1, 4) + struct.pack(">I", len(deflated(bytes(1 << 20)))) + deflated(bytes(1 << 20)),
            id="a bomb",
        ),
    ],
)
def test_malformed_chunks_are_refused(packed: bytes) -> None:
    with pytest.raises(MalformedError):
        unpack(memoryview(packed))


@pytest.mark.parametrize("seed", range(20))
def test_damaged_chunks_raise_nothing_else(seed: int) -> None:
    rng = random.Random(seed)
    print(f"seed {seed}")
    data = numbers(seed, 512).tobytes()
    packed = bytearray(pack(data, PlaneLayout(4, 8, 1.0)))
    for _ in range(rng.randrange(1, 4)):
        packed[rng.randrange(len(packed))] = rng.randrange(256)
    del packed[rng.choice((len(packed), rng.randrange(len(packed)))) :]
    with contextlib.suppress(MalformedError):
        assert len(unpack(memoryview(packed))) <= CHUNK
