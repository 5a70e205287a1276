"""The part of the x axis that is in sight: all of it, its tail as it grows, or a stretch that stands still."""

from __future__ import annotations

from dataclasses import dataclass

LEAST = 4.0  # of the x axis' unit: no closer than this


@dataclass(frozen=True)
class Viewport:
    """``tail``: the last share (0..1] of the axis, which follows its end. ``fixed``: a stretch, instead."""

    tail: float = 1.0
    fixed: tuple[float, float] | None = None

    @property
    def whole(self) -> bool:
        return self.fixed is None and self.tail >= 1.0

    def span(self, first: float, last: float) -> tuple[float, float]:
        """What is in sight of an axis from ``first`` to ``last``."""
        if self.fixed is not None:
            return self.fixed
        return last - (last - first) * self.tail, last

    def zoomed(self, factor: float, at: float | None, first: float, last: float) -> Viewport:
        """Closer by ``factor`` (farther below 1), around ``at``; around the newest point where that is None or the
        view follows it: it goes on following."""
        low, high = self.span(first, last)
        if self.fixed is None and (at is None or at >= high - (high - low) * 0.02):
            width = max((high - low) / factor, min(LEAST, last - first))
            share = width / (last - first) if last > first else 1.0
            return Viewport(min(1.0, share))
        at = (low + high) / 2 if at is None else min(max(at, low), high)
        width = max((high - low) / factor, min(LEAST, last - first))
        share = (at - low) / (high - low) if high > low else 0.5
        return _within(at - share * width, width, first, last)

    def panned(self, share: float, first: float, last: float) -> Viewport:
        """Moved by a share of what is in sight, to the right above 0."""
        low, high = self.span(first, last)
        return _within(low + share * (high - low), high - low, first, last)


def _within(low: float, width: float, first: float, last: float) -> Viewport:
    """A view of that width which does not leave the axis; one that touches its end follows it."""
    if width >= last - first:
        return Viewport()
    low = min(max(low, first), last - width)
    if low + width >= last - 1e-9 * max(1.0, abs(last)):
        return Viewport(width / (last - first))
    return Viewport(fixed=(low, low + width))
