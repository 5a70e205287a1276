"""All streams of a copy in one program that listens.

Each TLS connection is one stream. The operator's machine connects to it, with a certificate made for this copy. Each
connection begins with the number of its stream; a number is accepted once. The program listens until all streams are
there, or no further one came for half a minute, and only at the address by which the operator reached this machine.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from functools import partial
from typing import TYPE_CHECKING, Callable, Dict, List, Optional, Sequence

from midstream_core.json_types import JsonObject
from midstream_host.copy import tls_peer as tls
from midstream_host.copy.disk_receiver import receive_into
from midstream_host.copy.frames import Bytes, Incoming
from midstream_host.copy.receiver import received
from midstream_host.copy.sender import Sender, SocketOut, feed, take_from_disk
from midstream_host.copy.stdin_lines import IDLE_TIMEOUT, Line, StdinLines
from midstream_host.copy.tls_listener import ACCEPT_TIMEOUT, Callers, listen
from midstream_host.copy.writing_process import WritingProcess, processors
from midstream_host.declarations import program
from midstream_host.object_files import emit

if TYPE_CHECKING:  # its import takes longer than all others together
    import ssl


@program
def receive(directory: str, generation: str, kind: str, keys: Sequence[str], peer: JsonObject) -> int:
    """Receive the streams of a copy into the staging directory ``generation``.

    A program. Events: ``listening`` with ``port``; those of ``copy.disk_receiver.receive``, each with the number
    of its ``stream``; ``done`` without one, or a ``problem``.

    Args:
        directory: The target directory.
        generation: Name of the staging directory of this copy.
        kind: What the copy may contain (`allowlist`).
        keys: Key of each stream, in hex.
        peer: This end of the connections (`tls_peer`).
    """

    def write(number: int, stream: Incoming, report: Callable[..., None]) -> None:
        report = partial(report, stream=number)
        receive_into(directory, generation, kind, keys[number], lambda write: received(stream, write, report), report)

    # Forked before threads start that have locks. Where processors are few, further streams share this process.
    apart: Dict[int, WritingProcess] = {}
    for number in range(min(len(keys), processors() // 2)):
        apart[number] = WritingProcess(partial(write, number), list(apart.values()))
    StdinLines()  # ends this program when the app closes stdin

    def work(number: int, sock: ssl.SSLSocket) -> None:
        process = apart.pop(number, None)
        if process is None:
            write(number, Bytes(tls.reader(sock)), emit)
        else:
            process.receive(sock)

    try:
        return _serve(peer, len(keys), work)
    finally:
        for unused in apart.values():
            unused.close()


@program
def send(directory: str, streams: int, peer: JsonObject) -> int:
    """Send the items that lines on stdin request, each for one ``stream``.

    A program. Lines: those of ``copy.sender.send``. Events: ``listening`` with ``port``, then ``done`` or a
    ``problem``.
    """
    lines = StdinLines()
    queues: List["queue.Queue[Line]"] = [queue.Queue() for _ in range(streams)]

    def distribute() -> None:
        while True:
            line = lines.get()
            assert line is not None
            number: int = line["stream"]
            queues[number].put(line)

    def work(number: int, sock: ssl.SSLSocket) -> None:
        sender = Sender(directory, SocketOut(sock))
        if feed(partial(_line, queues[number]), sender, take_from_disk(sender)):
            tls.end(sock)

    threading.Thread(target=distribute, daemon=True).start()
    return _serve(peer, streams, work)


def _line(lines: "queue.Queue[Line]", seconds: Optional[float]) -> Optional[Line]:
    try:
        return lines.get(timeout=seconds)
    except queue.Empty:
        return None


def _serve(peer: JsonObject, count: int, work: Callable[[int, ssl.SSLSocket], None]) -> int:
    """Accept up to ``count`` streams, each in a thread; return the exit status."""
    threads: Dict[int, threading.Thread] = {}
    try:
        with listen(peer) as listener:
            emit("listening", port=listener.getsockname()[1])
            callers = Callers(listener, peer)
            try:
                while len(threads) < count:
                    sock = callers.first_authenticated(ACCEPT_TIMEOUT)
                    number = _number(sock, count)
                    if number is None or number in threads:
                        sock.close()
                        continue
                    sock.settimeout(IDLE_TIMEOUT)
                    threads[number] = threading.Thread(target=_run, args=(work, number, sock), daemon=True)
                    threads[number].start()
            finally:
                callers.close()
    except OSError as error:  # no further stream came: those that did go on
        if not threads:
            emit("problem", kind="truncated", message="no connection: {}".format(error))
            return 1
    for thread in threads.values():
        thread.join()
    emit("done")
    return 0


def _number(sock: ssl.SSLSocket, count: int) -> Optional[int]:
    """Return the number that a connection begins with.

    None if it is none of the copy's.
    """
    try:
        (number,) = tls.NUMBER.unpack(sock.recv(tls.NUMBER.size))
    except (OSError, tls.NumberError):
        return None
    return number if number < count else None


def _run(work: Callable[[int, ssl.SSLSocket], None], number: int, sock: ssl.SSLSocket) -> None:
    try:
        with sock:
            work(number, sock)
    except OSError:  # the other end has closed the connection, and its own program reports why
        return
    except BaseException as error:  # noqa: BLE001  the app waits for this stream: the program ends
        sys.excepthook(type(error), error, error.__traceback__)
        os._exit(1)
