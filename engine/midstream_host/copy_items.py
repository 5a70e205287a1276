"""Objects of a tree and items of a stream, as JSON.

The app sends them to the programs of a copy.

Dictionaries, because direct streams begin with these modules and dataclasses take time to import.
"""

from __future__ import annotations

from typing import TypedDict


class CopyObject(TypedDict):
    """A file of a tree."""

    path: str
    size: int  # bytes
    sha256: str  # hex


class HistoryObject(CopyObject, total=False):
    """A file of a run's history.

    With ``offset`` it is the end of the source's file, from there on.
    """

    offset: int


class _Range(CopyObject):
    offset: int  # in the object
    length: int  # bytes


class CopyItem(_Range, total=False):
    """A range of an object that one stream sends.

    ``begin``: where the object begins in the source's file.
    """

    begin: int
