"""Packing of complete documents into examples of a fixed length.

Best-fit decreasing, as in Ding et al., "Fewer Truncations Improve Language Modeling" (2024): the longest document
first, each into the fullest example that has room. A document longer than an example is divided into full examples and
a rest. A piece of one token has nothing to predict and is skipped. The packing is computed once, when the cache is
built, so an example is read by its number alone.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np

from midstream_core import records
from midstream_engine.data.token_cache import ObjectWriter

METHOD = "best-fit-decreasing-1"


@dataclass(frozen=True)
class Packs:
    """Packed examples as lists of pieces.

    Example i has the pieces ``rows[i]`` to ``rows[i + 1]``; a piece is the tokens [start, start + length).
    """

    rows: np.ndarray  # int64 [examples + 1]
    starts: np.ndarray  # int64 [pieces]
    lengths: np.ndarray  # int64 [pieces]

    @property
    def examples(self) -> int:
        """Number of examples."""
        return len(self.rows) - 1


def pack(offsets: np.ndarray, seq_len: int) -> Packs:
    """Pack documents that begin at ``offsets`` (int64 [documents + 1], the end last).

    The result depends on the arguments alone.
    """
    starts, lengths = _cut(offsets, seq_len)
    # Examples by their free space; bit s of ``spaces`` is set if ``by_space[s]`` has one.
    by_space: list[list[int]] = [[] for _ in range(seq_len + 1)]
    spaces = 0
    example = np.empty(len(starts), np.int64)  # of each piece
    examples = 0
    for piece in np.argsort(-lengths, kind="stable"):
        length = int(lengths[piece])
        fitting = spaces >> length
        if fitting:
            space = length + (fitting & -fitting).bit_length() - 1
            number = by_space[space].pop()
            if not by_space[space]:
                spaces &= ~(1 << space)
        else:
            space, number = seq_len, examples
            examples += 1
        example[piece] = number
        by_space[space - length].append(number)
        spaces |= 1 << (space - length)
    order = np.argsort(example, kind="stable")  # within an example as in the text
    rows = np.searchsorted(example[order], np.arange(examples + 1))
    return Packs(rows.astype(np.int64), starts[order], lengths[order])


def _cut(offsets: np.ndarray, seq_len: int) -> tuple[np.ndarray, np.ndarray]:
    """Return starts and lengths of the documents' pieces.

    A piece has two to ``seq_len`` tokens.
    """
    lengths = np.diff(offsets)
    counts = -(-lengths // seq_len)
    document = np.repeat(np.arange(len(lengths)), counts)
    inside = (np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)) * seq_len
    starts = offsets[:-1][document] + inside
    pieces = np.minimum(lengths[document] - inside, seq_len)
    kept = pieces >= 2
    return starts[kept], pieces[kept]


def write(packs: Packs, directory: str) -> list[records.ObjectEntry]:
    """Write ``packs-{rows,starts,lengths}.bin`` (int64); return the manifest entries."""
    entries: list[records.ObjectEntry] = []
    for name in ("rows", "starts", "lengths"):
        writer = ObjectWriter(directory, f"packs-{name}.bin", 1 << 62)
        writer.write(getattr(packs, name).astype("<i8").tobytes())
        writer.close()
        entries += writer.entries
    return entries


def read(directory: str) -> Packs:
    """Return what ``write`` wrote."""
    rows, starts, lengths = (
        np.memmap(os.path.join(directory, f"packs-{name}.bin"), "<i8", "r") for name in ("rows", "starts", "lengths")
    )
    return Packs(rows, starts, lengths)
