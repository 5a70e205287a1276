"""The visible part of the x axis: all of it, its growing tail, or a fixed range."""

from __future__ import annotations

from dataclasses import dataclass

MIN_SPAN = 4.0  # units of the x axis


@dataclass(frozen=True)
class Viewport:
    """Last share ``tail`` (0..1] of the axis, or a ``fixed`` range.

    The share follows the end of the axis.
    """

    tail: float = 1.0
    fixed: tuple[float, float] | None = None

    def span(self, first: float, last: float) -> tuple[float, float]:
        """Return the visible range of an axis from ``first`` to ``last``."""
        if self.fixed is not None:
            return self.fixed
        return last - (last - first) * self.tail, last

    def zoomed(self, factor: float, at: float | None, first: float, last: float, least: float = MIN_SPAN) -> Viewport:
        """Zoom in around ``at``, to ``least`` units of the axis at most.

        A view that follows the newest point, zoomed without ``at`` or near that point, keeps following it.

        Args:
            factor: Zoom factor; below 1 it zooms out.
            at: Value that stays in its place; None: the middle.
            first: First value of the axis.
            last: Last value of the axis.
            least: Shortest span, in units of the axis.
        """
        low, high = self.span(first, last)
        if self.fixed is None and (at is None or at >= high - (high - low) * 0.02):
            width = max((high - low) / factor, min(least, last - first))
            share = width / (last - first) if last > first else 1.0
            return Viewport(min(1.0, share))
        at = (low + high) / 2 if at is None else min(max(at, low), high)
        width = max((high - low) / factor, min(least, last - first))
        share = (at - low) / (high - low) if high > low else 0.5
        return _within(at - share * width, width, first, last)

    def panned(self, share: float, first: float, last: float) -> Viewport:
        """Move by a share of the visible range, to the right if positive."""
        low, high = self.span(first, last)
        return _within(low + share * (high - low), high - low, first, last)


def _within(low: float, width: float, first: float, last: float) -> Viewport:
    """Return a view of this width within the axis.

    At the end of the axis the view follows the newest point.
    """
    if width >= last - first:
        return Viewport()
    low = min(max(low, first), last - width)
    if low + width >= last - 1e-9 * max(1.0, abs(last)):
        return Viewport(width / (last - first))
    return Viewport(fixed=(low, low + width))
