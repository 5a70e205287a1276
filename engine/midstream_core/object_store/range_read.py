"""Range of an object, read by one request, or by several where bodies break off."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus

from midstream_core.object_store.bucket_client import BLOCK
from midstream_core.object_store.client_library import Response
from midstream_core.object_store.errors import StoreError
from midstream_core.object_store.response_body import receive


class BrokenBodyError(ConnectionError):
    """A body broke off; what arrived before can be used."""


class TakeError(Exception):
    """Failure of the caller of `BucketClient.read_blocks`, not of the service."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class RangeRead:
    """Reading of a range, block by block, that continues after a body that broke off.

    Attributes:
        arrived: Bytes that have arrived and were taken, from the range's begin.
    """

    def __init__(self, length: int, memory: memoryview, take: Callable[[memoryview], None] | None = None) -> None:
        """Begin to read a range of ``length`` bytes.

        ``memory`` and ``take`` are those of `BucketClient.read_blocks`; without ``take`` the memory has the bytes.
        """
        self._length, self._memory, self._take = length, memory, take
        self._in_place = len(memory) >= length
        self.arrived = 0

    def check_status(self, status: int, offset: int, name: str) -> None:
        """Check that an answer has a range, not the object from its begin.

        Args:
            status: HTTP status of the answer.
            offset: Begin of the range in the object.
            name: Of the object, in the message.

        Raises:
            StoreError: The service ignores ranges.
        """
        if status == HTTPStatus.OK and offset + self.arrived:
            raise StoreError(
                f"{name}: the service answered with the complete object, not with a range",
                "an emulator or a proxy that supports Range is needed",
            )

    def receive(self, response: Response, size: int | None = None, failures: tuple[type[Exception], ...] = ()) -> None:
        """Receive a body, which begins with the bytes that follow those that have arrived.

        Args:
            response: Answer of urllib3; its body was not read.
            size: Bytes of the body, as its headers report them. None: not reported.
            failures: Errors of a connection that broke, besides those of the standard library.

        Raises:
            BrokenBodyError: Fewer bytes arrived.
            TakeError: ``take`` failed.
        """
        expected = self._length - self.arrived
        expected = expected if size is None else min(size, expected)
        begin, end = self.arrived, self.arrived + expected

        def room(count: int) -> memoryview:
            start = begin + count if self._in_place else 0
            return self._memory[start : start + BLOCK]

        receive(response, expected, room, self._count_and_take, failures)
        if self.arrived < end:
            raise BrokenBodyError(f"{self.arrived} of {end} bytes arrived")

    def _count_and_take(self, block: memoryview) -> None:
        self.arrived += len(block)
        if self._take is not None:
            try:
                self._take(block)
            except Exception as error:  # noqa: BLE001  raised again by the client, where nothing repeats it
                raise TakeError(error) from None


class RangeReader:
    """The reading of ranges of a `BucketClient`, over one method of its own."""

    def _read(self, path: str, offset: int, length: int, reading: RangeRead, version: str | None) -> int:
        """Read a range; return how many bytes arrived."""
        raise NotImplementedError

    def read(self, path: str, offset: int, length: int, version: str | None = None) -> bytes:
        """Return a range; fewer bytes at the object's end."""
        data = bytearray(length)
        return bytes(memoryview(data)[: self.read_into(path, offset, memoryview(data), version)])

    def read_into(self, path: str, offset: int, into: memoryview, version: str | None = None) -> int:
        """Read a range into memory, as `BucketClient.read_into`."""
        return self._read(path, offset, len(into), RangeRead(len(into), into), version)

    def read_blocks(
        self,
        path: str,
        offset: int,
        length: int,
        memory: memoryview,
        take: Callable[[memoryview], None],
        version: str | None = None,
    ) -> int:
        """Read a range block by block, as `BucketClient.read_blocks`."""
        try:
            return self._read(path, offset, length, RangeRead(length, memory, take), version)
        except TakeError as failed:
            raise failed.error from None
