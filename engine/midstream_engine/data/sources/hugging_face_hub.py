"""Hugging Face datasets, through the package datasets if it is installed."""

from __future__ import annotations

import os
import urllib.parse
from collections.abc import Iterator
from typing import Any

from midstream_engine.base_directory import resolved_path
from midstream_engine.data.errors import DataError
from midstream_engine.data.sources.source_file import SourceFile

SCHEME = "hf://"
_SAVED = ("dataset_dict.json", "state.json")  # files of save_to_disk


class NoSplitError(DataError):
    """The dataset has no split of that name."""


def dataset_url(dataset: str, name: str | None, split: str) -> str:
    """Return the URL of a split of a dataset."""
    query = urllib.parse.urlencode({"split": split, **({"name": name} if name else {})})
    return f"{SCHEME}{urllib.parse.quote(dataset)}?{query}"


def describe(url: str) -> SourceFile:
    """Download and prepare the dataset; its version is the package's fingerprint."""
    rows = _load(url)
    return SourceFile(url, url, -1, rows._fingerprint, len(rows))


def texts(source: SourceFile, text_key: str, start: int, end: int) -> Iterator[bytes]:
    """Yield the texts of rows [start, end).

    Raises:
        DataError: The split has changed, or has no column ``text_key``.
    """
    rows = _load(source.path)
    if rows._fingerprint != source.version:
        raise DataError(f"data: {source.path} has changed while it was read (hint: start again)")
    if text_key not in rows.column_names:
        raise DataError(
            f"data: {source.path} has no column {text_key!r} (data.text_key); it has {', '.join(rows.column_names)}"
        )
    for number, row in enumerate(rows.select_columns([text_key]).select(range(start, end)), start):
        text = row[text_key]
        if not isinstance(text, str):
            raise DataError(f"data: {source.path}, row {number}: {text_key!r} is no text")
        yield text.encode("utf-8", "replace")


def _load(url: str) -> Any:
    dataset, _, query = url.removeprefix(SCHEME).partition("?")
    query_values = dict(urllib.parse.parse_qsl(query))
    dataset, split = urllib.parse.unquote(dataset), query_values["split"]
    try:
        import datasets  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise DataError(f"data.id: {dataset!r} needs the package datasets: pip install datasets") from None
    directory = resolved_path(dataset)
    try:
        if any(os.path.isfile(os.path.join(directory, name)) for name in _SAVED):
            return _saved(datasets.load_from_disk(directory), dataset, split)
        here = directory if os.path.isdir(directory) else dataset
        return datasets.load_dataset(here, query_values.get("name"), split=split)
    except DataError:
        raise
    except Exception as error:  # noqa: BLE001 (the package raises whatever its loaders raise)
        kind = NoSplitError if "unknown split" in str(error).lower() else DataError
        raise kind(f"data.id: {dataset!r}, split {split}: {' '.join(str(error).split())}") from None


def _saved(value: object, dataset: str, split: str) -> object:
    """Return a split of the output of ``save_to_disk``.

    A single set is its training split.
    """
    splits = value if isinstance(value, dict) else {"train": value}
    if split not in splits:
        raise NoSplitError(f"data.id: {dataset!r} has no split {split}; it has {', '.join(splits)}")
    return splits[split]
