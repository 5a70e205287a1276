"""The files of a tokenizer, imported with the model or data that was made with it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence

from midstream_engine.data.imported_files import SCHEME, write_imported

NAMES = (
    "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json",
    "vocab.json", "merges.txt", "chat_template.jinja", "generation_config.json",
)  # fmt: skip
FOLDER = "tokenizer"  # in data that another trainer prepared


def files_at(place: str) -> dict[str, str]:
    """Return the files of a tokenizer's folder by name.

    ``place``: the folder, or the ``tokenizer.json`` in it.

    Returns none if ``place`` is only a name.
    """
    place = os.path.expanduser(place)
    folder = place if os.path.isdir(place) else os.path.dirname(os.path.abspath(place))
    files = {name: os.path.join(folder, name) for name in NAMES if os.path.isfile(os.path.join(folder, name))}
    if os.path.isfile(place) and os.path.basename(place) not in files:
        return {"tokenizer.json": os.path.abspath(place)}
    return files if os.path.exists(place) else {}


def first_at(places: Sequence[str], name: str) -> dict[str, str]:
    """Return the files at ``name``, which may be relative to one of ``places``."""
    return next((files for place in places if (files := files_at(os.path.join(place, os.path.expanduser(name))))), {})


def beside_data(files: Mapping[str, str]) -> dict[str, str]:
    """Return the files by their names in a directory of imported data."""
    return {f"{FOLDER}/{name}": path for name, path in files.items()}


def carry(files: Mapping[str, str], data: str, final: str) -> str:
    """Import the files under ``data``; return the value of ``data.tokenizer``.

    ``data`` will be renamed to ``final``.
    """
    digest = os.path.basename(write_imported(data, files, {"kind": "tokenizer"}))
    return f"{SCHEME}{final}/{digest}"


def copy_files(files: Mapping[str, str], directory: str) -> None:
    """Copy files, name -> path, into a directory."""
    for name, path in files.items():
        shutil.copyfile(path, os.path.join(directory, name))
