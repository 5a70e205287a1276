"""One stream of a copy: a sender, a receiver, and what carries the bytes from one to the other."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import threading
from collections.abc import Sequence
from queue import Queue
from typing import Any

from midstream.errors import LostContact, MidstreamError
from midstream.hosts.host import Process
from midstream.hosts.rpc.remote_program import last_words
from midstream.remote.copy.requested_items import RequestedItems
from midstream.transfer.copy_reports import checked_reports
from midstream.transfer.endpoint import Endpoint

CHUNK = 1 << 18  # bytes taken from the source at once, where the kernel cannot join the pipes
PIPE = 1 << 20  # bytes a pipe holds
ENDING = 10.0  # seconds that a program may take to end once its pipes are closed
AHEAD = 32 << 20  # bytes of work that the sender knows of in advance: what it sends until it hears of more
AHEAD_ITEMS = 4096

Item = dict[str, Any]
Events = Queue[tuple[Any, dict[str, Any]]]


class Stream:
    """Objects on their way. Puts ``(stream, report)`` on ``events``: the receiver's lines as they come, and last
    ``ended``. ``relayed``: the sender's stdout is the receiver's stdin; otherwise they have found each other. ``key``
    is what the receiver has and the sender has not: it tags each item (`midstream.remote.copy.requested_items`)."""

    def __init__(
        self,
        source: Endpoint,
        target: Endpoint,
        sender: Process,
        receiver: Process,
        events: Events,
        *,
        relayed: bool,
        key: str,
    ):
        self.source, self.target = source, target
        self._requests = RequestedItems(key)
        self._sender, self._receiver, self._events = sender, receiver, events
        self._source_error: Exception | None = None
        self._target_error: Exception | None = None
        self._bytes = self._items = 0  # fed, and not landed yet
        self.ending = self.done = self.ended = False
        self._pipes = _own(sender.stdout, receiver.stdin) if relayed else (None, None)
        self._threads = [
            threading.Thread(target=work, name=f"copy-{work.__name__.strip('_')}", daemon=True)
            for work in ((self._pump, self._listen) if relayed else (self._listen,))
        ]
        for thread in self._threads:
            thread.start()

    # ------------------------------------------------------------------------------------------------- work

    def hungry(self, stock: int = AHEAD) -> bool:
        """Whether the sender should be told of more work, so that it never waits; ``stock`` bytes are enough."""
        return not self.ending and (self._items < 2 or (self._bytes < stock and self._items < AHEAD_ITEMS))

    def feed(self, items: Sequence[Item], rate: float, *, last: bool) -> None:
        """More to send, at ``rate`` bytes a second (0: no limit); ``last``: there is no more after it."""
        self._items += len(items)
        self._bytes += sum(item["length"] for item in items)
        self.ending = self.ending or last
        tagged = [self._requests.tagged(item) for item in items]
        self._say({"items": tagged, "rate": rate, **({"end": True} if last else {})})

    def pace(self, rate: float) -> None:
        self._say({"rate": rate})

    def landed(self, bytes_: int, items: int) -> None:
        self._bytes -= bytes_
        self._items -= items

    def _say(self, line: dict[str, Any]) -> None:
        # Whatever broke is told by the receiver, or by `why`.
        with contextlib.suppress(OSError, ValueError, LostContact):
            self._sender.stdin.write(json.dumps(line).encode() + b"\n")
            self._sender.stdin.flush()

    # ------------------------------------------------------------------------------------------------- bytes

    def _pump(self) -> None:
        try:
            out, into = self._pipes
            if out is not None and into is not None:
                self._join(out, into)
            else:
                self._carry()
        finally:
            with contextlib.suppress(OSError, ValueError, LostContact):  # it may be gone already
                self._receiver.stdin.close()

    def _join(self, source: int, target: int) -> None:
        """The kernel moves pages from pipe to pipe."""
        for pipe in (source, target):
            with contextlib.suppress(OSError):  # an unprivileged user's share of large pipes is used up
                fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE)
        try:
            while os.splice(source, target, PIPE):
                pass
        except OSError as error:  # the receiver ended: its report says why
            self._target_error = error
        finally:
            os.close(source)
            os.close(target)

    def _carry(self) -> None:
        source, target = self._sender.stdout, self._receiver.stdin
        read = getattr(source, "read1", source.read)
        try:
            while chunk := read(CHUNK):
                try:
                    target.write(chunk)
                    target.flush()
                except (OSError, ValueError, LostContact) as error:
                    self._target_error = error
                    return
        except (OSError, ValueError, LostContact) as error:
            self._source_error = error

    def _listen(self) -> None:
        try:
            for report in checked_reports(self._receiver, self.target):
                self._events.put((self, report))
        except (OSError, ValueError, MidstreamError) as error:
            self._target_error = error
        finally:
            self.ended = True
            self._events.put((self, {"event": "ended"}))

    # ------------------------------------------------------------------------------------------------- the end

    def why(self) -> MidstreamError:
        """Once it has ended without ``done``: what broke it."""
        for place, process, error in (
            (self.target, self._receiver, self._target_error),
            (self.source, self._sender, self._source_error),
        ):
            if isinstance(error, MidstreamError):
                return error
            try:
                status = process.wait(ENDING)
            except LostContact as lost:
                return lost
            except TimeoutError:
                return LostContact(f"{place.host.name} does not answer any more", "run the same copy again to go on")
            if status and process.stderr_text().strip():
                return MidstreamError(f"copying to or from {place} ended with {status}: {last_words(process)}")
        return LostContact(
            f"the stream from {self.source} to {self.target} was cut", "run the same copy again to go on"
        )

    def close(self) -> None:
        """End both sides. Idempotent; what was verified stays."""
        for process in (self._sender, self._receiver):
            process.close()
        for thread in self._threads:
            thread.join(ENDING)


def _own(*streams: Any) -> tuple[int | None, ...]:
    """Descriptors of real pipes that nobody else closes: a number that is in use elsewhere by then would get our bytes.
    None for what a library makes look like a pipe, and then for all of them."""
    try:
        numbers = [stream.fileno() for stream in streams]
    except (OSError, AttributeError, ValueError):
        return (None,) * len(streams)
    return tuple(os.dup(number) for number in numbers)
