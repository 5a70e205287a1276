"""Digests of checkpoints, batches and data."""

from __future__ import annotations

import base64
import hashlib
import re
from typing import Iterable, List, Mapping, Sequence

from midstream_core.json_types import JsonObject, JsonValue, optional_object
from midstream_core.records.errors import RecordError
from midstream_core.records.field_forms import DIGEST
from midstream_core.records.files import canonical_json
from midstream_core.records.manifest import ArrayEntry

# Prefix of a url or of data.tokenizer: a directory, named by its digest, of files imported with a run.
IMPORTED = "imported:"


def batch_digest(example_digests: Iterable[bytes]) -> str:
    """Return SHA-256 over the digests of the examples, in global example order."""
    total = hashlib.sha256()
    for digest in example_digests:
        total.update(digest)
    return total.hexdigest()


def root_digest(arrays: Sequence[ArrayEntry], sha256: Mapping[str, str], state: JsonObject) -> str:
    """Return the checkpoint's identity.

    SHA-256 of the canonical JSON of the arrays, sorted by name, each with the hashes of its objects (``sha256``: path
    -> hex), together with the ``state`` of ``train.json``.
    """
    described = [
        {
            "name": array.name,
            "axes": list(array.axes),
            "shape": list(array.shape),
            "dtype": array.dtype,
            "grid": list(array.grid),
            "objects": [[path, sha256[path]] for path in array.objects],
        }
        for array in sorted(arrays, key=lambda array: array.name)
    ]
    return hashlib.sha256(canonical_json({"arrays": described, "state": state})).hexdigest()


def data_digests(train: JsonObject) -> List[str]:
    """Return the digests of the data directories that a checkpoint's run needs.

    First the token cache that it trains on, then its validation sets, both left out where they are stored in a bucket
    (``data.cache_dir``); last the files of an imported tokenizer. Raises RecordError for another shape.
    """
    try:
        provenance = optional_object(train.get("provenance"))
        config = optional_object(optional_object(provenance.get("config")).get("data"))
        digests: List[JsonValue] = [*tokenizer_digests(config.get("tokenizer"))]
        if not config.get("cache_dir"):
            sets = optional_object(provenance.get("validation"))
            digest = optional_object(train["state"]).get("data_digest", "")
            own = [digest, *(optional_object(sets[name])["digest"] for name in sorted(sets))]
            digests = [*own, *digests]
    except (AttributeError, KeyError, TypeError) as error:
        raise RecordError(f"train.json: another shape than expected ({type(error).__name__}: {error})") from None
    return list(dict.fromkeys(_checked(digest) for digest in digests if digest))


def _checked(value: JsonValue) -> str:
    """Return a digest that may name a directory. Raises RecordError for anything else."""
    if not isinstance(value, str) or not re.fullmatch(DIGEST.pattern, value):
        raise RecordError(f"train.json: {str(value)[:60]!r} is not a digest of data")
    return value


def tokenizer_digests(tokenizer: JsonValue) -> List[str]:
    """Return the digest of an imported tokenizer's files, from ``data.tokenizer``.

    The result is empty for any other tokenizer.
    """
    name = str(tokenizer or "")
    return [name.rstrip("/").rpartition("/")[2]] if name.startswith(IMPORTED) else []


def crc32c_base64(value: int) -> str:
    """Return a crc32c in the form that buckets report."""
    return base64.b64encode(value.to_bytes(4, "big")).decode()
