"""The way between two hosts. There is one so far: relayed through the operator, as a stream that is never stored."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from queue import Queue
from threading import Thread
from typing import Any, Protocol

from midstream.errors import LostContact, MidstreamError
from midstream.hosts.base import Host
from midstream.hosts.far import start_program
from midstream.hosts.programs import last_words, reports

CHUNK = 1 << 18  # bytes taken from the source at once. Larger writes stall in SSH windows
ENDING = 10.0  # seconds that a program may take to end once its pipes are closed


@dataclass(frozen=True)
class Place:
    """A directory on a host."""

    host: Host
    directory: str

    def __str__(self) -> str:
        return f"{self.host.name}:{self.directory}"


class Stream(Protocol):
    """Objects on their way. Puts ``(stream, report)`` on the queue it was given: the receiver's lines as they come,
    and last ``{"event": "ended"}``."""

    def why(self) -> MidstreamError:
        """Once it has ended without ``done``: what broke it."""
        ...

    def close(self) -> None:
        """End both sides. Idempotent; what was verified stays."""
        ...


class Route(Protocol):
    """How bytes get from ``source`` to ``target``."""

    @property
    def source(self) -> Place: ...

    @property
    def target(self) -> Place: ...

    def start(self, objects: Sequence[dict[str, Any]], events: Queue[tuple[Stream, dict[str, Any]]]) -> Stream: ...


@dataclass(frozen=True)
class Relay:
    """Sender and receiver are programs on the two hosts; the operator carries bytes from one pipe to the other.

    It keeps one chunk a stream: a slow target slows the source through the pipes."""

    source: Place
    target: Place

    def start(self, objects: Sequence[dict[str, Any]], events: Queue[tuple[Stream, dict[str, Any]]]) -> Stream:
        return _RelayStream(self.source, self.target, objects, events)


class _RelayStream:
    def __init__(
        self,
        source: Place,
        target: Place,
        objects: Sequence[dict[str, Any]],
        events: Queue[tuple[Stream, dict[str, Any]]],
    ):
        self._source, self._target, self._events = source, target, events
        self._source_error: Exception | None = None
        self._target_error: Exception | None = None
        self._sender = start_program(
            source.host, "objects.send", {"directory": source.directory, "objects": list(objects)}
        )
        try:
            self._receiver = start_program(
                target.host, "objects.receive", {"directory": target.directory, "objects": list(objects)}
            )
        except BaseException:
            self._sender.close()
            raise
        self._threads = [
            Thread(target=work, name=f"relay-{work.__name__.strip('_')}", daemon=True)
            for work in (self._pump, self._listen)
        ]
        for thread in self._threads:
            thread.start()

    def _pump(self) -> None:
        source, target = self._sender.stdout, self._receiver.stdin
        read = getattr(source, "read1", source.read)
        try:
            while chunk := read(CHUNK):
                try:
                    target.write(chunk)
                    target.flush()
                except (OSError, ValueError, LostContact) as error:  # the receiver ended: its report says why
                    self._target_error = error
                    return
        except (OSError, ValueError, LostContact) as error:
            self._source_error = error
        finally:
            with contextlib.suppress(OSError, ValueError, LostContact):  # it may be gone already
                target.close()

    def _listen(self) -> None:
        try:
            for report in reports(self._receiver):
                self._events.put((self, report))
        except (OSError, ValueError, LostContact) as error:
            self._target_error = error
        finally:
            self._events.put((self, {"event": "ended"}))

    def why(self) -> MidstreamError:
        for place, process, error in (
            (self._target, self._receiver, self._target_error),
            (self._source, self._sender, self._source_error),
        ):
            if isinstance(error, LostContact):
                return error
            try:
                status = process.wait(ENDING)
            except LostContact as lost:
                return lost
            except TimeoutError:
                return LostContact(f"{place.host.name} does not answer any more", "run the same copy again to go on")
            words = process.stderr_text().strip()
            if status and words:
                return MidstreamError(f"copying to or from {place} ended with {status}: {last_words(process)}")
        return MidstreamError(
            f"the stream from {self._source} to {self._target} was cut", "run the same copy again to go on"
        )

    def close(self) -> None:
        self._sender.close()
        self._receiver.close()
        for thread in self._threads:
            thread.join(ENDING)
