"""Lossless packing of chunks of numbers by the planes of their bytes.

The planes that compress are compressed.

In an array of ``width`` bytes per number, plane k has byte k of every number. Sign and exponent of floating-point
numbers repeat, their mantissas do not: of float32 in little-endian order plane 3 compresses to about a third and the
others not at all, so that only a quarter of the bytes is compressed. Standard library only; Python 3.8.

A packed chunk: width (u8), mask of the compressed planes (u8), length of the chunk (u32), then for each plane its
length (u32) and bytes, big-endian. A compressed plane is a raw deflate stream.
"""

from __future__ import annotations

import struct
import zlib
from typing import List, NamedTuple, Optional

CHUNK = 1 << 18  # bytes of a chunk before it is packed
WIDTHS = (4, 2, 8, 1)
SAMPLE = 1 << 14  # bytes of a chunk by which its layout is chosen
MAX_PLANE = 0.95  # of its size that a compressed plane may keep; above, it is sent as it is
HEADER = struct.Struct(">BBI")
LENGTH = struct.Struct(">I")
MAX_PACKED = CHUNK + HEADER.size + 8 * LENGTH.size  # bytes of a packed chunk at most


class MalformedError(Exception):
    """A packed chunk is not what `pack` makes."""


class PlaneLayout(NamedTuple):
    """The packing of the chunks of one object."""

    width: int  # bytes per number
    mask: int  # bit k: plane k is compressed
    kept: float  # expected share of the bytes that remains


def layout_of(data: bytes) -> Optional[PlaneLayout]:
    """Return the layout that packs samples of ``data`` best; None if none does.

    The samples are from the beginning, the middle and the end.
    """
    third = SAMPLE // 3 // 8 * 8
    middle = len(data) // 2 // 8 * 8
    end = max(0, len(data) - third) // 8 * 8
    sample = data if len(data) <= SAMPLE else data[:third] + data[middle : middle + third] + data[end:]
    layouts = [layout for layout in (_layout(sample, width) for width in WIDTHS) if layout is not None]
    return min(layouts, key=lambda layout: layout.kept, default=None)


def _layout(sample: bytes, width: int) -> Optional[PlaneLayout]:
    mask, rest = 0, 0
    for plane in range(width):
        values = sample[plane::width]
        size = len(_deflated(values))
        if values and size <= MAX_PLANE * len(values):
            mask |= 1 << plane
            rest += size
        else:
            rest += len(values)
    return PlaneLayout(width, mask, rest / len(sample)) if mask else None


def pack(data: bytes, layout: PlaneLayout) -> bytes:
    """Return ``data``, at most `CHUNK` bytes, packed with ``layout``.

    The result may be longer than ``data``.
    """
    mask = 0
    parts: List[bytes] = []
    for plane in range(layout.width):
        values = data[plane :: layout.width]
        if layout.mask >> plane & 1:
            packed = _deflated(values)
            if len(packed) < len(values):
                mask |= 1 << plane
                values = packed
        parts += (LENGTH.pack(len(values)), values)
    return b"".join((HEADER.pack(layout.width, mask, len(data)), *parts))


def unpack(packed: memoryview) -> bytearray:
    """Return the bytes of a packed chunk, at most `CHUNK`.

    Raises:
        MalformedError: ``packed`` is not a packed chunk.
    """
    try:
        width, mask, size = HEADER.unpack_from(packed)
        if width not in WIDTHS or mask >> width or not 0 < size <= CHUNK:
            raise MalformedError("its header is wrong")
        data, at = bytearray(size), HEADER.size
        for plane in range(width):
            (length,) = LENGTH.unpack_from(packed, at)
            at += LENGTH.size
            values = packed[at : at + length]
            at += length
            expected = len(range(plane, size, width))
            if mask >> plane & 1:
                data[plane::width] = _inflated(values, expected)
            elif len(values) == expected:
                data[plane::width] = values
            else:
                raise MalformedError("a plane has another length")
    except (struct.error, ValueError, zlib.error) as error:
        raise MalformedError(str(error)) from None
    if at != len(packed):
        raise MalformedError("it has bytes behind its planes")
    return data


def _deflated(values: bytes) -> bytes:
    # Huffman codes and runs: longer matches are rare in numbers, and the search for them takes most of the time.
    deflate = zlib.compressobj(1, zlib.DEFLATED, -15, 9, zlib.Z_RLE)
    return deflate.compress(values) + deflate.flush()


def _inflated(values: memoryview, expected: int) -> bytes:
    """Return exactly ``expected`` bytes.

    Raises MalformedError: a stream of another length is never expanded.
    """
    inflate = zlib.decompressobj(-15)
    data = inflate.decompress(values, expected) if expected else b""
    if len(data) != expected or not (inflate.eof or inflate.decompress(inflate.unconsumed_tail, 1) == b""):
        raise MalformedError("a plane has another length")
    return data
