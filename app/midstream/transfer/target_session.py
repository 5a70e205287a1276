"""The operator's end of the program that receives a copy's objects at the target (`midstream.remote.copy.session`)."""

from __future__ import annotations

import contextlib
import json
import secrets
import threading
from collections.abc import Mapping, Sequence
from queue import Queue
from typing import Any

from midstream.errors import LostContact, MidstreamError
from midstream.hosts.rpc.remote_program import last_words
from midstream.transfer.copy_reports import checked_reports
from midstream.transfer.endpoint import Endpoint
from midstream.transfer.transport import start

ALIVE = 5.0  # seconds between two signs of life; the far side waits six times as long
ENDING = 10.0

Report = dict[str, Any]


def new_generation() -> str:
    """A name for what one copy brings."""
    return secrets.token_hex(8)


class Session:
    """Puts ``(self, report)`` on ``events`` for each line of the far program, and ``ended`` last."""

    def __init__(
        self,
        target: Endpoint,
        objects: Sequence[Mapping[str, Any]],
        events: Queue[tuple[Any, Report]],
        *,
        manifest: str | None,
        text: str = "",
        survey: bool = True,
        generation: str = "",
        kind: str,
    ):
        self.target = target
        self.generation = generation or new_generation()
        self._events = events
        self._error: Exception | None = None
        self._writing = threading.Lock()
        self._closed = threading.Event()
        self._process = start(
            target.host,
            "copy.session.serve",
            {
                "directory": target.directory,
                "generation": self.generation,
                "objects": [{key: entry[key] for key in ("path", "size", "sha256")} for entry in objects],
                "manifest": manifest,
                "text": text,
                "root": target.host.root,
                "survey": survey,
                "kind": kind,
            },
        )
        self._threads = [
            threading.Thread(target=work, name=f"copy-{work.__name__.strip('_')}", daemon=True)
            for work in (self._listen, self._keep_alive)
        ]
        for thread in self._threads:
            thread.start()

    def landed(self, ranges: Sequence[Sequence[Any]]) -> None:
        """Ranges ``[path, offset, length]`` whose bytes lie in the staging directory."""
        self._say({"do": "landed", "ranges": list(ranges)})

    def commit(self) -> None:
        """Everything is named: write the manifest. ``committed`` is the answer."""
        self._say({"do": "commit"})

    def end(self) -> None:
        """Nothing is to be written any more."""
        self._say({"do": "end"})

    def _say(self, line: Report) -> None:
        # What broke is told where its words arrive.
        with self._writing, contextlib.suppress(OSError, ValueError, LostContact):
            self._process.stdin.write(json.dumps(line).encode() + b"\n")
            self._process.stdin.flush()

    def _keep_alive(self) -> None:
        while not self._closed.wait(ALIVE):
            self._say({"do": "alive"})

    def _listen(self) -> None:
        try:
            for report in checked_reports(self._process, self.target):
                self._events.put((self, report))
        except (OSError, ValueError, MidstreamError) as error:
            self._error = error
        finally:
            self._events.put((self, {"event": "ended"}))

    def why(self) -> MidstreamError:
        """Once it has ended too early: what broke it."""
        if isinstance(self._error, MidstreamError):
            return self._error
        try:
            status = self._process.wait(ENDING)
        except LostContact as lost:
            return lost
        except TimeoutError:
            return LostContact(f"{self.target.host.name} does not answer any more", "run the same copy again to go on")
        if not self._process.stderr_text().strip():
            # It ends so where it heard nothing for long: the operator slept, or the link carried nothing.
            return LostContact(
                f"the program that receives on {self.target} was ended ({status})", "run the same copy again to go on"
            )
        return MidstreamError(f"copying to {self.target} ended with {status}: {last_words(self._process)}")

    def close(self) -> None:
        """Idempotent."""
        self._closed.set()
        self._process.close()
        for thread in self._threads:
            thread.join(ENDING)
