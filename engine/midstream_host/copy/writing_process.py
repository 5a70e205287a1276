"""A second process for a stream: it checks and writes what this one decrypts.

Both run at the same time, on cores of their own. The process is forked before this one starts threads that have locks;
what it reports goes through this one, so that lines do not mix.
"""

from __future__ import annotations

import os
import select
import sys
import threading
from typing import TYPE_CHECKING, Callable, Sequence

from midstream_core.json_types import JsonValue
from midstream_host.copy.frames import Incoming
from midstream_host.copy.shared_blocks import SharedBlocks
from midstream_host.copy.stdin_lines import IDLE_TIMEOUT
from midstream_host.object_files import emit_line, line_of

if TYPE_CHECKING:  # its import takes longer than all others together
    import ssl

Report = Callable[..., None]


def processors() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class WritingProcess:
    """The process; ends with its stream, or with this process."""

    def __init__(self, work: Callable[[Incoming, Report], object], others: "Sequence[WritingProcess]" = ()) -> None:
        """Fork it.

        Args:
            work: Called there with the stream and a function that reports (an event, and its fields by name), unless
                the stream ends before its first byte.
            others: The processes that were forked before. The new process closes its copies of their pipes: while a
                copy is open, they do not see the end of their streams.
        """
        self._blocks = SharedBlocks()
        self._reports, reporting = os.pipe()
        self._process = os.fork()
        if not self._process:
            self._run(work, reporting, others)
        os.close(reporting)
        self._blocks.fill_only()

    def _run(
        self, work: Callable[[Incoming, Report], object], reporting: int, others: "Sequence[WritingProcess]"
    ) -> None:
        """Receive the stream, in the new process; does not return."""
        status = 1
        try:
            for other in others:
                other.release()
            os.close(self._reports)
            self._blocks.empty_only()
            lock = threading.Lock()

            def report(event: str, **fields: JsonValue) -> None:
                data = memoryview(line_of(event, fields))
                with lock:
                    while data:
                        data = data[os.write(reporting, data) :]

            if self._blocks.wait():
                work(self._blocks, report)
            status = 0
        except BrokenPipeError:  # the process that passes reports on has ended
            status = 0
        except BaseException as error:  # noqa: BLE001  it must not go on as the process that it was forked from
            sys.excepthook(type(error), error, error.__traceback__)
        finally:
            sys.stderr.flush()
            os._exit(status)

    def receive(self, sock: "ssl.SSLSocket") -> None:
        """Pass a stream on until its end, and wait for the process.

        What is wrong with the stream, the process reports. Where it fails itself, this program ends.
        """
        reports = threading.Thread(target=self._pass_on_reports, daemon=True)
        reports.start()
        try:
            _decrypt(sock, self._blocks)
        except BrokenPipeError:  # it has reported a problem, and ended
            pass
        finally:
            self._blocks.close_filling()
        reports.join()
        status = os.waitpid(self._process, 0)[1]
        if os.WIFSIGNALED(status):
            print("the process that writes was ended by signal {}".format(os.WTERMSIG(status)), file=sys.stderr)
        if status:
            sys.stderr.flush()
            os._exit(1)

    def _pass_on_reports(self) -> None:
        with os.fdopen(self._reports, "rb") as lines:
            for line in lines:
                emit_line(line)

    def close(self) -> None:
        """End the process, where it received no stream."""
        self.release()
        os.waitpid(self._process, 0)

    def release(self) -> None:
        """Close this process's ends of its pipes."""
        self._blocks.close_filling()
        os.close(self._reports)


def _decrypt(sock: "ssl.SSLSocket", blocks: SharedBlocks) -> None:
    """Fill blocks until the connection's end."""
    import ssl

    sock.setblocking(False)
    with_data = select.poll()
    with_data.register(sock, select.POLLIN)
    ended = False
    while not ended:
        view = blocks.empty_block()
        filled = 0
        while filled < len(view):
            try:
                count = sock.recv_into(view[filled:])
            except ssl.SSLWantReadError:
                if filled:
                    break
                if not with_data.poll(IDLE_TIMEOUT * 1000):
                    return
                continue
            except OSError:  # a reset, an end without close_notify: the frames show what is missing
                count = 0
            if not count:
                ended = True
                break
            filled += count
        if filled:
            blocks.filled(filled)
