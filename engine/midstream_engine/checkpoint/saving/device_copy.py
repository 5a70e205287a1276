"""Copy of a state in its devices' memory, fetched to host memory part by part.

Training waits for the copy alone, which takes a read and a write of device memory. The updates that follow may then
take the memory of the state itself.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding

from midstream_core.attempt.errors import CheckpointError
from midstream_engine.array_types import Compiled, Device, Index
from midstream_engine.checkpoint.jax_functions import functions

AHEAD = 512 << 20  # bytes in transfer from devices while earlier ones are processed


class Transfers:
    """Transfers of parts to host memory, in the order in which they will be read.

    At most ``AHEAD`` bytes, or one part, are in transfer or in host memory before they are read. For any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting = deque[DevicePart]()
        self._started: set[DevicePart] = set()  # and not read yet

    def expect(self, part: DevicePart) -> None:
        """Note that ``part`` will be read after those that are expected already."""
        with self._lock:
            if not part.expected:
                part.expected = True
                self._waiting.append(part)

    def start(self, part: DevicePart, data: jax.Array) -> None:
        """Start the transfer of ``part`` now, then those of the next parts."""
        with self._lock:
            if part not in self._started:
                self._start(part, data)
            self._advance()

    def end(self, part: DevicePart) -> None:
        """Note that ``part`` is in host memory, or not needed any more."""
        with self._lock:
            self._started.discard(part)
            with contextlib.suppress(ValueError):  # not expected
                self._waiting.remove(part)

    def advance(self) -> None:
        """Start the transfers of the next parts."""
        with self._lock:
            self._advance()

    def _advance(self) -> None:
        ahead = sum(part.nbytes for part in self._started)
        while self._waiting and (not ahead or ahead + self._waiting[0].nbytes <= AHEAD):
            part = self._waiting[0]
            if part.data is not None:
                ahead += part.nbytes
                self._start(part, part.data)
            else:
                self._waiting.popleft()

    def _start(self, part: DevicePart, data: jax.Array) -> None:
        data.copy_to_host_async()
        part.expected = True
        self._started.add(part)
        with contextlib.suppress(ValueError):  # not expected
            self._waiting.remove(part)


class DevicePart:
    """A part of an array, in the memory of its device until it is read.

    Then it is in host memory until all of it was read. Every element is read at most once. The memory on the device is
    free as soon as the part is in host memory.
    """

    def __init__(self, data: jax.Array, transfers: Transfers) -> None:
        """Take over ``data``, an array on one device that nothing else uses."""
        self.dtype, self.nbytes = np.dtype(data.dtype), int(data.nbytes)
        self.data: jax.Array | None = data  # until it is in host memory
        self.expected = False
        self._transfers = transfers
        self._lock = threading.Lock()
        self._host: np.ndarray | None = None
        self._unread = data.size

    def __getitem__(self, index: Index) -> np.ndarray:
        """Return elements as an array of numpy; wait for their transfer.

        Raises:
            CheckpointError: The device cannot be read, or all elements were read before.
        """
        with self._lock:
            values = self._fetched()[index]
            self._unread -= values.size
            if self._unread <= 0:
                self._host = None  # ``values`` holds the memory
            return values

    def expect(self) -> None:
        """Note that the part will be read, after those that are expected already."""
        self._transfers.expect(self)

    def free(self) -> None:
        """Free the memory on the device and the host. What was read stays valid."""
        self._transfers.end(self)
        with self._lock:
            if self.data is not None:
                self.data.delete()
            self.data = self._host = None

    def _fetched(self) -> np.ndarray:
        if self._host is not None:
            return self._host
        if self.data is None:
            raise CheckpointError("a part of the state was read twice from its copy on the device")
        try:
            self._transfers.start(self, self.data)
            self._host = np.asarray(self.data)
            data, self.data = self.data, None
            data.delete()
            self._transfers.end(self)
            self._transfers.advance()
        except (functions.errors.JaxRuntimeError, MemoryError) as error:
            raise CheckpointError(f"the copy of the state on the device cannot be read: {first_line(error)}") from error
        return self._host


def copy_on_devices(arrays: Sequence[jax.Array]) -> list[jax.Array]:
    """Copy arrays, each on its own device; return when the copies are complete.

    Until then nothing may take the memory of ``arrays``. One program copies all arrays of a device. Nothing is sent
    between devices or processes.

    Args:
        arrays: Arrays that are on one device each.

    Raises:
        JaxRuntimeError: A device has no memory left, for example. No copy stays allocated.
    """
    copies: dict[int, jax.Array] = {}
    try:
        for device, numbers in _by_device(arrays).items():
            given = [arrays[number] for number in numbers]
            copies |= zip(numbers, _programs.get(device, _shapes(given))(given), strict=True)
        functions.block_until_ready(list(copies.values()))  # an error of a device is known here, and not before
    except BaseException:
        for copy in copies.values():
            copy.delete()
        raise
    return [copies[number] for number in range(len(arrays))]


def prepare_copies(arrays: Sequence[jax.Array]) -> Callable[[], None]:
    """Return a function that compiles what ``copy_on_devices`` needs for ``arrays``.

    Any thread may call the function. The arrays may be deleted by then.
    """
    needed = [
        (device, _shapes([arrays[number] for number in numbers])) for device, numbers in _by_device(arrays).items()
    ]

    def compile_all() -> None:
        for program in needed:
            _programs.get(*program)

    return compile_all


def first_line(error: Exception) -> str:
    """Return the kind of an error and the first line of its text."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def _by_device(arrays: Sequence[jax.Array]) -> dict[Device, list[int]]:
    numbers: dict[Device, list[int]] = {}
    for number, array in enumerate(arrays):
        sharding: Any = array.sharding
        (device,) = sharding.device_set
        numbers.setdefault(device, []).append(number)
    return numbers


_Shapes = tuple[tuple[tuple[int, ...], np.dtype], ...]  # of arrays: shape, dtype


def _shapes(arrays: Sequence[jax.Array]) -> _Shapes:
    return tuple((array.shape, array.dtype) for array in arrays)


def _copied(arrays: list[jax.Array]) -> list[jax.Array]:
    # Nothing is donated, so that XLA gives every result memory of its own.
    return [jnp.copy(array) for array in arrays]


class _Programs:
    """Compiled programs by device and shapes, for any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[tuple[Device, _Shapes], Compiled] = {}

    def get(self, device: Device, shapes: _Shapes) -> Compiled:
        with self._lock:
            if (device, shapes) not in self._known:
                where = SingleDeviceSharding(device)
                arguments = [jax.ShapeDtypeStruct(shape, dtype, sharding=where) for shape, dtype in shapes]
                self._known[device, shapes] = functions.jit(_copied).lower(arguments).compile()
            return self._known[device, shapes]


_programs = _Programs()
