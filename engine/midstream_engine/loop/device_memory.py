"""Whether the devices have room for a copy of a state, beside the updates.

With the copy, training waits for one pass through device memory. Without it, training waits until the state is in the
memory of the host. In doubt there is no copy: an update that finds no memory would end the training.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

from midstream_core.json_types import JsonValue
from midstream_engine.array_types import Device, PyTree
from midstream_engine.checkpoint.saving.device_copy import first_line
from midstream_engine.checkpoint.saving.snapshot import device_bytes, prepare_device_copy

log = logging.getLogger(__name__)
RESERVE = 1 / 32  # of a device's memory, which stays free
PREALLOCATED = 0.9  # of the limit, at least: so much the allocator has where it takes its memory at the start


def _statistics(device: Device) -> Mapping[str, int] | None:
    return device.memory_stats()


class DeviceMemory:
    """Decides before each save whether the state is copied on its devices."""

    def __init__(
        self,
        working: Callable[[], int | None],
        statistics: Callable[[object], Mapping[str, int] | None] = _statistics,
    ) -> None:
        """Prepare to decide.

        Args:
            working: Returns the most bytes that a program takes on a device beside its arguments; None: not known.
            statistics: Returns a device's ``memory_stats``; None: it has none.
        """
        self._working, self._statistics = working, statistics
        self._copied: dict[JsonValue, int] = {}  # bytes of the newest copy, by device
        self._peak: dict[JsonValue, int] = {}  # largest use without a copy, by device
        self._failed = self._said = ""
        self._compiling: threading.Thread | None = None

    def prepare(self, state: PyTree) -> None:
        """Compile the copy of ``state`` on a thread: the first save does not wait for it."""
        if not device_bytes(state):
            return
        compile_copy = prepare_device_copy(state)

        def work() -> None:
            try:
                compile_copy()
            except Exception as error:  # noqa: BLE001 (of any kind: the save tries again, or fetches the state)
                log.warning("the copy of the state on the devices cannot be compiled: %s", first_line(error))

        self._compiling = threading.Thread(target=work, name="compile-copy", daemon=True)
        self._compiling.start()

    def close(self) -> None:
        """Wait until nothing is compiled any more.

        A thread in jax could crash the process at its exit.
        """
        if self._compiling is not None:
            self._compiling.join()

    def holds_copy(self, state: PyTree) -> bool:
        """Return whether ``state`` is on accelerators with room for a copy.

        The log says once why there is none.
        """
        needed = device_bytes(state)
        shortage = self._failed or self._shortage(needed) if needed else ""
        if shortage and shortage.partition(":")[0] != self._said:
            self._said = shortage.partition(":")[0]
            log.info("training waits while a state is fetched from the devices: %s", shortage)
        return bool(needed) and not shortage

    def shortage(self, tree: PyTree) -> str:
        """Return why accelerators have no room for a copy of ``tree``.

        Empty if they have, and for other devices.
        """
        needed = device_bytes(tree)
        return self._shortage(needed) if needed else ""

    def note(self, state: PyTree, copied: bool) -> None:
        """Note whether a copy was made that was tried. After a failure none is tried."""
        if copied:
            self._copied = device_bytes(state)
        else:
            self._failed = "a copy on the devices has failed"

    def _shortage(self, needed: Mapping[JsonValue, int]) -> str:
        working = self._working()
        if working is None:
            return "the memory that updates need is not known"
        for device, size in needed.items():
            statistics = self._statistics(device) or {}
            limit, used = statistics.get("bytes_limit"), statistics.get("bytes_in_use")
            if not limit or used is None:
                return f"{device} does not report its memory"
            # The peak counts earlier copies, and what compilers, evaluations and collectives take.
            peak = statistics.get("peak_bytes_in_use", used) - self._copied.get(device, 0)
            self._peak[device] = peak = max(peak, self._peak.get(device, 0))
            total = size + max(working, peak - used) + int(RESERVE * limit)
            room = _room(statistics, limit, used)
            if total > room:
                return f"no room for a copy: {device} has {_gib(room)} free, {_gib(total)} are needed with the update"
        return ""


def _room(statistics: Mapping[str, int], limit: int, used: int) -> int:
    """Return the bytes of a device that are certainly free in one block."""
    free, pool = limit - used, statistics.get("pool_bytes")
    block = min(free, statistics.get("largest_free_block_bytes") or free)
    if pool is None:
        return block
    # An allocator that grows takes new blocks of the device, and what is free in the old ones is in pieces.
    return block if pool >= PREALLOCATED * limit else limit - pool


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.2f} GiB"
