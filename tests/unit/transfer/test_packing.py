"""A sender packs only while that makes its copy faster."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from midstream_host.copy import packing
from midstream_host.copy.byte_planes import CHUNK, PlaneLayout
from midstream_host.copy.packing import BUSY_SHARE, FIRST_PAUSE, MAX_WINDOW, MIN_WINDOW, WARM_UP, Packing

WEIGHTS = (np.random.default_rng(0).standard_normal(CHUNK // 4) * 0.02).astype(np.float32).tobytes()
NOISE = np.random.default_rng(0).bytes(CHUNK)
MB = 1e6


class Sender:
    """A sender on a link of ``link`` bytes per second that packs ``packer`` bytes per second; its clock is its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, link: float, packer: float, data: bytes = WEIGHTS) -> None:
        self.link, self.packer, self.data, self.now = link, packer, data, 0.0
        self.disk = 1e10  # bytes per second without the link
        self.packing = Packing(lambda: self.now)
        pack = packing.pack

        def timed(data: bytes, layout: PlaneLayout) -> bytes:
            self.now += len(data) / self.packer
            return pack(data, layout)

        monkeypatch.setattr(packing, "pack", timed)

    def window(self, share: float = 1.0) -> bool:
        """Send a window, or a share of one; return whether it was packed."""
        size = int(share * self.packing.window)
        self.packing.begin(lambda most: self.data[:most])
        layout = self.packing.layout
        left = layout.kept if layout else 1.0
        work = size / (self.packer if layout else self.disk)
        seconds = max(work, left * size / self.link)  # the packer works ahead of the link
        self.now += seconds
        self.packing.sent(size, seconds - work)
        self.packing.end()
        return layout is not None

    def windows(self, count: int) -> list[bool]:
        return [self.window() for _ in range(count)]


Make = Callable[..., Sender]


@pytest.fixture
def sender(monkeypatch: pytest.MonkeyPatch) -> Make:
    def make(link: float, packer: float = 300 * MB, data: bytes = WEIGHTS) -> Sender:
        return Sender(monkeypatch, link, packer, data)

    return make


def test_slow_link_is_packed_after_it_was_measured(sender: Make) -> None:
    packed = sender(link=100 * MB).windows(40)
    first = packed.index(True)
    assert all(packed[first:])
    assert WARM_UP // MAX_WINDOW <= first <= WARM_UP // MIN_WINDOW + 1


def test_link_faster_than_packing_is_never_packed(sender: Make) -> None:
    assert not any(sender(link=280 * MB).windows(400))


def test_work_that_does_not_wait_is_never_packed(sender: Make) -> None:
    assert not any(sender(link=1e11).windows(400))


def test_bytes_that_do_not_compress_are_not_packed(sender: Make) -> None:
    assert not any(sender(link=50 * MB, data=NOISE).windows(400))


def test_trial_that_is_not_faster_is_put_off_twice_as_long(sender: Make) -> None:
    slow = sender(link=100 * MB)
    slow.windows(WARM_UP // MIN_WINDOW)
    packed = []
    for _ in range(3 * FIRST_PAUSE + 4):
        slow.packer = 300 * MB  # one chunk alone is packed quickly
        slow.packing.begin(lambda most: WEIGHTS[:most])
        packed.append(slow.packing.layout is not None)
        slow.now += slow.packing.window / (90 * MB if packed[-1] else 100 * MB)  # but other programs need the cores
        slow.packing.sent(slow.packing.window, 1.0)
        slow.packing.end()
    assert [number for number, each in enumerate(packed) if each] == [0, FIRST_PAUSE + 1, 3 * FIRST_PAUSE + 2]


def test_link_that_became_faster_is_measured_again(sender: Make) -> None:
    link = sender(link=100 * MB)
    assert link.windows(10)[-1]
    link.link = 1e9
    link.window()  # still packed; the sender hardly waited
    assert not link.packing.layout
    assert not any(link.windows(100))


def test_end_of_an_object_is_not_judged(sender: Make) -> None:
    link = sender(link=100 * MB)
    assert not any(link.window(0.25) for _ in range(10))
    assert 0 < BUSY_SHARE < packing.WAITING_SHARE
