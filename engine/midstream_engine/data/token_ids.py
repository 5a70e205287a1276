"""Token ids beyond the vocabulary.

The embedding has no row for them, and the loss becomes NaN some steps later.
"""

from __future__ import annotations

import numpy as np

from midstream_engine.data.errors import DataError


def first_unknown(ids: np.ndarray, vocabulary: int) -> int | None:
    """Return the first position in ``ids`` with an id out of range, else None.

    ``ids`` is integers [n]; the range is [0, ``vocabulary``).
    """
    if not ids.size or (int(ids.max()) < vocabulary and int(ids.min()) >= 0):
        return None
    return int(np.argmax((ids >= vocabulary) | (ids < 0)))


def unknown_id(place: str, token: int, vocabulary: int) -> DataError:
    """Return the error for a token id.

    ``place`` names the dataset and the document or sample.
    """
    return DataError(
        f"{place} has token id {token}, but the vocabulary has {vocabulary} ids "
        "(hint: was the text tokenized with another tokenizer?)"
    )
