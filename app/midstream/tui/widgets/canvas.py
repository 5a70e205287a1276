"""A canvas of braille dots, 2 x 4 per cell; a cell has one colour."""

from __future__ import annotations

from collections.abc import Sequence

BRAILLE = 0x2800
# The bit of the dot (column, row) of a cell, as Unicode numbers them.
_BITS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))


class Canvas:
    """Canvas of ``width`` x ``height`` cells, (2*width) x (4*height) dots.

    Dot (0, 0) is at the top left.
    """

    def __init__(self, width: int, height: int) -> None:
        self.width = width
        self.height = height
        self._bits = [[0] * width for _ in range(height)]
        self._colours: list[list[str]] = [[""] * width for _ in range(height)]

    def column(self, x: int, top: int, bottom: int, colour: str) -> None:
        """Set the dots of column ``x`` from ``top`` to ``bottom``, inclusive.

        The two may be in either order.
        """
        if top > bottom:
            top, bottom = bottom, top
        cell, bits = x >> 1, _BITS[x & 1]
        if not 0 <= cell < self.width:
            return
        for y in range(max(0, top), min(4 * self.height - 1, bottom) + 1):
            row = y >> 2
            self._bits[row][cell] |= bits[y & 3]
            self._colours[row][cell] = colour

    def line(self, x0: int, y0: int, x1: int, y1: int, colour: str) -> None:
        """Draw a connected straight line, ``x0 < x1``.

        Args:
            x0: Column of its start, in dots.
            y0: Row of its start, in dots.
            x1: Column of its end, in dots.
            y1: Row of its end, in dots.
            colour: Colour of the line.
        """
        last = y0
        for x in range(x0 + 1, x1 + 1):
            y = round(y0 + (y1 - y0) * (x - x0) / (x1 - x0))
            step = (y > last) - (y < last)
            self.column(x, last + step if y != last else y, y, colour)
            last = y

    def row(self, y: int) -> tuple[Sequence[int], Sequence[str]]:
        """Return the dots and the colours of the cells of a row; 0 and "" of a cell without dots."""
        return self._bits[y], self._colours[y]
