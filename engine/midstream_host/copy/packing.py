"""When a sender packs what it sends: only while that makes the copy faster.

Packing costs processor time and saves bytes. The sender measures in windows of the bytes that it sends. If it spent
most of a window waiting for the link, and packing one chunk was much faster than the link, it packs the next window. It
goes on for as long as packed windows are faster than the last plain one; otherwise it tries again later, each time
after twice as many windows. On a link that is faster than packing, nothing but the time of one chunk is spent.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Callable, Iterator, Optional, Tuple

from midstream_host.copy.byte_planes import CHUNK, PlaneLayout, layout_of, pack

if TYPE_CHECKING:  # most streams are never packed, and its import takes a fifth of a program's start
    from concurrent.futures import Future, ThreadPoolExecutor

MIN_WINDOW, MAX_WINDOW = 1 << 20, 4 << 20  # bytes of objects, before packing
WINDOW_TIME = 0.25  # seconds that a window should take
WARM_UP = 8 << 20  # bytes that are sent first: they fill the buffers of pipes and sockets
WAITING_SHARE = 0.5  # of a plain window's time that the sender must have waited for the link
PACKER_LEAD = 1.25  # packing must be this much faster than the link
BUSY_SHARE = 0.2  # of a packed window's time: if the sender waited less, packing may be what limits it
MIN_GAIN = 1.02  # ratio of the rates of a packed and a plain window
MIN_SAVED = 0.03  # share of the bytes that a layout must save
FIRST_PAUSE, MAX_PAUSE = 16, 256  # windows until the next trial

Clock = Callable[[], float]


class Packing:
    """Decision for each window of one stream whether it is packed.

    ``clock`` is monotonic, in seconds.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self.layout: Optional[PlaneLayout] = None  # of the window that begins; None: it is sent as it is
        self.window = MIN_WINDOW  # bytes of the next window
        self._warm_up = WARM_UP  # bytes until the link is measured
        self._pause, self._next_pause = 0, FIRST_PAUSE
        self._plain_rate = 0.0  # bytes per second of the last plain window
        self._began = clock()
        self._bytes, self._waited = 0, 0.0

    def begin(self, read: Callable[[int], bytes]) -> None:
        """Begin a window.

        ``read(COUNT)`` returns the next bytes of the object, without consuming them.
        """
        packing = self.layout is not None
        self.layout = None
        if packing or (self._pause <= 0 and self._plain_rate > 0 and self._warm_up <= 0):
            chunk = read(CHUNK)
            layout = layout_of(chunk)
            if layout is not None and layout.kept <= 1 - MIN_SAVED and (packing or self._pays(chunk, layout)):
                self.layout = layout
            elif not packing:
                self._put_off()
        self._began = self._clock()
        self._bytes, self._waited = 0, 0.0

    def sent(self, count: int, waited: float) -> None:
        """Count bytes of objects, and the seconds that the sender waited for the link."""
        self._bytes += count
        self._waited += waited

    def end(self) -> None:
        """End a window, and judge it unless it has less than half of its bytes.

        Such a short window comes at the end of an object.
        """
        seconds = self._clock() - self._began
        self._warm_up -= self._bytes
        if self._bytes < self.window // 2 or seconds <= 0:
            return
        rate = self._bytes / seconds
        self.window = int(max(MIN_WINDOW, min(MAX_WINDOW, rate * WINDOW_TIME))) // CHUNK * CHUNK
        if self.layout is not None:
            if rate < MIN_GAIN * self._plain_rate:
                self._put_off()
                self.layout = None
            elif self._waited < BUSY_SHARE * seconds:  # the link may have become faster: measure it again
                self._warm_up, self.layout = WARM_UP, None
            return
        self._pause -= 1
        self._plain_rate = rate if self._waited >= WAITING_SHARE * seconds else 0.0

    def _pays(self, chunk: bytes, layout: PlaneLayout) -> bool:
        began = self._clock()
        pack(chunk, layout)
        seconds = max(self._clock() - began, 1e-9)
        return len(chunk) / seconds >= PACKER_LEAD * self._plain_rate

    def _put_off(self) -> None:
        self._pause = self._next_pause
        self._next_pause = min(2 * self._next_pause, MAX_PAUSE)


class Packer:
    """Packs the chunks of a file in a thread, one chunk before they are written."""

    def __init__(self) -> None:
        self._pool: Optional[ThreadPoolExecutor] = None

    def chunks(
        self, file: int, offset: int, count: int, layout: PlaneLayout
    ) -> Iterator[Tuple[bytes, Optional[bytes]]]:
        """Yield each chunk and its packed form, which is None where it is not shorter.

        Fewer than ``count`` bytes are yielded where the file ends before.
        """
        if self._pool is None:
            from concurrent.futures import ThreadPoolExecutor

            self._pool = ThreadPoolExecutor(1)
        end = offset + count

        def submit(at: int) -> Optional[Future[Tuple[bytes, Optional[bytes]]]]:
            assert self._pool is not None
            return self._pool.submit(_read_and_pack, file, at, min(CHUNK, end - at), layout) if at < end else None

        ahead = submit(offset)
        while ahead is not None:
            data, packed = ahead.result()
            offset += len(data)
            ahead = submit(offset) if data else None
            yield data, packed


def _read_and_pack(file: int, offset: int, count: int, layout: PlaneLayout) -> Tuple[bytes, Optional[bytes]]:
    data = os.pread(file, count, offset)
    packed = pack(data, layout) if data else b""
    return data, packed if len(packed) < len(data) else None
