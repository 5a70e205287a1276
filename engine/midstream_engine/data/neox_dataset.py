"""GPT-NeoX's datasets, read unchanged: ``.bin`` and ``.idx`` files, index maps.

``.idx``: magic, version (u64), element type (u8), number of documents and of the document index (u64 each), then sizes
(int32), byte offsets (int64) and the document index (int64), all little-endian. The index maps are ``doc_idx`` (the
documents in the order of training), ``sample_idx`` [samples + 1, 2] (where each sample begins: an index of ``doc_idx``,
a token in that document) and ``shuffle_idx`` (the order of samples). A sample is ``seq_len + 1`` tokens. Several
datasets are blended: the next sample comes from the one that is furthest behind its weight.
"""

from __future__ import annotations

import glob
import math
import os
import struct
from collections.abc import Mapping, Sequence

import numpy as np

from midstream_engine.data.data_manifest import DataManifest
from midstream_engine.data.errors import DataError
from midstream_engine.data.imported_files import mapped, vocabulary_of, write_imported
from midstream_engine.data.token_ids import first_unknown, unknown_id

MAPS = ("doc_idx", "sample_idx", "shuffle_idx")
_MAGIC = b"MMIDIDX\x00\x00"
_HEADER = struct.Struct("<9sQBQQ")
_DTYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
_BLEND = "blend.bin"
_CHECKED_TOKENS = 4 << 20  # tokens that are checked at a time


class NeoxDocuments:
    """A ``.bin`` and ``.idx`` pair, mapped."""

    def __init__(self, bin_path: str, idx_path: str) -> None:
        """Map the two files.

        Raises:
            DataError: A file is malformed, or the two do not belong together.
        """
        with open(idx_path, "rb") as file:
            header = file.read(_HEADER.size)
        if len(header) < _HEADER.size or header[:9] != _MAGIC:
            raise DataError(f"{idx_path}: no index of a NeoX dataset (MMIDIDX); cached and lazy ones are unsupported")
        _, version, code, count, _ = _HEADER.unpack(header)
        if version != 1 or code not in _DTYPES:
            raise DataError(f"{idx_path}: unknown version {version} or element type {code}")
        index = mapped(idx_path, "u1")
        if len(index) < _HEADER.size + 12 * count:
            raise DataError(f"{idx_path}: truncated: {count} documents do not fit in {len(index)} bytes")
        sizes_end = _HEADER.size + 4 * count
        self.sizes = index[_HEADER.size : sizes_end].view("<i4")
        offsets = index[sizes_end : sizes_end + 8 * count].view("<i8")
        dtype = np.dtype(_DTYPES[code])
        self._tokens = mapped(bin_path, dtype)
        self._starts = offsets // dtype.itemsize
        if count and int(self._starts[-1]) + int(self.sizes[-1]) > len(self._tokens):
            raise DataError(f"{bin_path}: truncated: {idx_path} has more tokens")

    @property
    def tokens(self) -> int:
        """Number of tokens."""
        return len(self._tokens)

    def check_ids(self, name: str, vocabulary: int) -> None:
        """Read all tokens, and check that each is in the vocabulary.

        Raises:
            DataError: One is not; its document is named.
        """
        for start in range(0, len(self._tokens), _CHECKED_TOKENS):
            ids = self._tokens[start : start + _CHECKED_TOKENS]
            if (at := first_unknown(ids, vocabulary)) is not None:
                document = int(np.searchsorted(self._starts, start + at, "right")) - 1
                raise unknown_id(f"{name}: document {document}", int(ids[at]), vocabulary)

    def read(self, document: int, start: int, count: int | None) -> np.ndarray:
        """Return ``count`` tokens of a document from ``start`` on; None: to its end."""
        first = int(self._starts[document]) + start
        end = int(self._starts[document]) + int(self.sizes[document]) if count is None else first + count
        return self._tokens[first:end]


class Samples:
    """One dataset in NeoX's order."""

    def __init__(
        self, documents: NeoxDocuments, doc_idx: np.ndarray, sample_idx: np.ndarray, shuffle_idx: np.ndarray
    ) -> None:
        self._documents, self._doc, self._sample, self._shuffle = documents, doc_idx, sample_idx, shuffle_idx

    @property
    def count(self) -> int:
        """Number of samples before NeoX repeats them."""
        return min(len(self._shuffle), len(self._sample) - 1) - 1

    def read(self, number: int, length: int) -> np.ndarray:
        """Return sample ``number`` in training order, int32 [length], padded with zeros."""
        index = int(self._shuffle[number])
        (first, start), (last, end) = self._sample[index].tolist(), self._sample[index + 1].tolist()
        if first == last:
            parts = [self._documents.read(int(self._doc[first]), start, end - start + 1)]
        else:
            parts = [self._documents.read(int(self._doc[first]), start, None)]
            parts += [self._documents.read(int(self._doc[between]), 0, None) for between in range(first + 1, last)]
            parts.append(self._documents.read(int(self._doc[last]), 0, end + 1))
        tokens = np.zeros(length, np.int32)
        joined = np.concatenate(parts)[:length]
        tokens[: len(joined)] = joined
        return tokens


class NeoxExamples:
    """Examples of a NeoX dataset: example i is the run's sample i.

    An example has ``seq_len + 1`` tokens, the last of which is only a target.
    """

    def __init__(self, directory: str, manifest: DataManifest) -> None:
        self.key = manifest["digest"]
        self._length = manifest["seq_len"] + 1
        self._sets = [_open(directory, str(number)) for number in range(manifest["datasets"])]
        self._blend = mapped(os.path.join(directory, _BLEND), "u1") if manifest["datasets"] > 1 else None
        self.count = self.sequences = self._sets[0].count if self._blend is None else len(self._blend)
        self._ranks: list[np.ndarray] = []
        self._mask = np.ones(self._length, np.uint8)
        self._mask[-1] = 0

    def locate(self, number: int) -> tuple[int, int]:
        """Return the dataset of a sample and its number within it."""
        if self._blend is None:
            return 0, number
        if not self._ranks:  # samples of each dataset before each block of the blend
            counts = [
                np.bincount(self._blend[start : start + _STRIDE], minlength=len(self._sets))
                for start in range(0, len(self._blend), _STRIDE)
            ]
            self._ranks = [np.cumsum([np.zeros_like(counts[0]), *counts], 0)]
        dataset, block = int(self._blend[number]), number // _STRIDE
        inside = int(np.count_nonzero(self._blend[block * _STRIDE : number] == dataset))
        return dataset, int(self._ranks[0][block][dataset]) + inside

    def read(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return tokens and loss mask of an example."""
        dataset, sample = self.locate(number)
        return self._sets[dataset].read(sample % self._sets[dataset].count, self._length), self._mask

    def prefetch(self, numbers: np.ndarray) -> None:
        """Do nothing: the data is local."""


_STRIDE = 4096


def _open(directory: str, name: str) -> Samples:
    documents = NeoxDocuments(*(os.path.join(directory, f"{name}.{end}") for end in ("bin", "idx")))
    maps = [np.load(os.path.join(directory, f"{name}.{kind}.npy"), mmap_mode="r") for kind in MAPS]
    return Samples(documents, *(np.asarray(array) for array in maps))


def import_neox(
    data_root: str,
    prefixes: Sequence[str],
    weights: Sequence[float] | None,
    *,
    split: bool,
    samples: int,
    seq_len: int,
    seed: int,
    tokenizer: str,
    beside: Mapping[str, str] | None = None,
) -> str:
    """Link datasets and NeoX's index maps under ``data_root``; return the directory.

    Args:
        data_root: Directory of the host's token caches.
        prefixes: Paths of the datasets without ``.bin`` and ``.idx``.
        weights: Weights of the datasets; None: equal.
        split: True for one dataset of which a part is for training (``data-path``), False for complete ones that are
            blended by ``weights`` (``train-data-paths``).
        samples: Samples of the run.
        seq_len: Tokens of an example.
        seed: Seed of the run.
        tokenizer: Name of the tokenizer.
        beside: Further files to link, by name.

    Raises:
        DataError: A file is missing, or a token id is beyond the vocabulary.
    """
    vocabulary = vocabulary_of(tokenizer)
    shares = np.array(weights or [1.0] * len(prefixes), np.float64)
    shares = np.array([share / float(sum(shares.tolist())) for share in shares.tolist()])
    files: dict[str, str | bytes] = {**(beside or {})}
    tokens = documents = 0
    for number, prefix in enumerate(prefixes):
        needed = samples if split else math.ceil(samples * float(shares[number]) * 1.005)
        name = "train" if split else f"train_{number}"
        maps = _maps(f"{prefix}_{name}_indexmap_{needed}ns_{seq_len}sl_{seed}s")
        for kind, path in zip(MAPS, maps, strict=True):
            files[f"{number}.{kind}.npy"] = path
        for end in ("bin", "idx"):
            files[f"{number}.{end}"] = f"{prefix}.{end}"
            if not os.path.isfile(f"{prefix}.{end}"):
                raise DataError(f"{prefix}.{end}: no such file (hint: --data names the dataset's present path)")
        held = NeoxDocuments(f"{prefix}.bin", f"{prefix}.idx")
        if vocabulary is not None:
            held.check_ids(f"{prefix}.bin", vocabulary)
        tokens, documents = tokens + held.tokens, documents + len(held.sizes)
    if len(prefixes) > 1:
        files[_BLEND] = blend(shares / shares.sum(), samples).tobytes()
    about = {
        "kind": "neox", "tokenizer": tokenizer, "tokens": tokens, "documents": documents, "seq_len": seq_len,
        "datasets": len(prefixes),
    }  # fmt: skip
    return write_imported(data_root, files, about)


def _maps(start: str) -> list[str]:
    """Return the three index maps whose names begin with ``start``.

    Newer versions append the kind of packing.
    """
    names = sorted(glob.glob(f"{glob.escape(start)}*_{MAPS[0]}.npy"))
    if len(names) != 1:
        what = "there is no such file" if not names else f"there are {len(names)} such files"
        raise DataError(f"{start}*_{MAPS[0]}.npy: {what} (hint: copy NeoX's index maps to the dataset's directory)")
    ends = [names[0].removesuffix(f"{MAPS[0]}.npy") + f"{kind}.npy" for kind in MAPS]
    missing = [name for name in ends if not os.path.isfile(name)]
    if missing:
        raise DataError(f"{missing[0]}: no such file (hint: copy all three index maps)")
    return ends


def blend(weights: np.ndarray, count: int) -> np.ndarray:
    """Return the dataset of each of ``count`` samples, uint8 [count].

    Each sample comes from the dataset that is furthest behind its weight (float64, sum 1), the first of equals.
    """
    order = bytearray(count)
    shares, taken = weights.tolist(), [0] * len(weights)
    for number in range(count):
        at = float(max(number, 1))
        behind = [share * at - have for share, have in zip(shares, taken, strict=True)]
        chosen = behind.index(max(behind))
        order[number] = chosen
        taken[chosen] += 1
    return np.frombuffer(bytes(order), np.uint8)
