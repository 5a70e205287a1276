"""A column of a list: heading, alignment, and how it fits into a narrow terminal."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Column:
    """Column of a table.

    ``widest`` is the width from which on a column grows only into room that no other one needs; ``rest`` marks the last
    column, which gets the remaining width. A ``name`` is cut in the middle, since names often begin alike.

    ``optional`` omits the column while all its cells are empty, ``extra`` until it was chosen. ``field`` names what the
    column is sorted by.

    In a narrow table the columns with the highest ``drop`` are omitted first, then the last ones. The cells of a column
    that is ``entire`` are never cut.
    """

    title: str
    right: bool = False
    drop: int = 0
    widest: int = 40
    rest: bool = False
    optional: bool = False
    entire: bool = False
    extra: bool = False
    field: str = ""
    name: bool = False
