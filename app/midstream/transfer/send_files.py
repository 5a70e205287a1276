"""Send files of a run history; there is no manifest."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from queue import Queue
from threading import Event

from midstream.errors import MidstreamError
from midstream.hosts.rpc.report_types import Committed, Ready
from midstream.transfer.copy_problems import problem_error
from midstream.transfer.copy_settings import RELAY, CopySettings, settings_of_hosts
from midstream.transfer.endpoint import Endpoint
from midstream.transfer.link import probe
from midstream.transfer.progress import Meter
from midstream.transfer.route import StreamRoute
from midstream.transfer.send_queue import SendQueue, ranges
from midstream.transfer.stream import Events
from midstream.transfer.stream_pool import StreamPool
from midstream.transfer.target_session import TargetSession
from midstream_host.allowlist import HISTORY
from midstream_host.copy_items import HistoryObject


def send_files(
    source: Endpoint,
    target: Endpoint,
    files: Sequence[HistoryObject],
    meter: Meter,
    *,
    explain: Callable[[str, str], MidstreamError],
    cancel: Event | None = None,
    settings: CopySettings | None = None,
) -> None:
    """Send files of a run history, over those of the same names, without a manifest.

    Args:
        source: Run directory of the source.
        target: Run directory of the target.
        files: ``{path, size, sha256}`` of each, with ``offset`` if only the end of the file is sent.
        meter: Counts what arrives.
        explain: Returns the error for a file (path, what is wrong) that arrived with another hash.
        cancel: Ends the copy when it is set.
        settings: By default those of the fleet file.

    Raises:
        TransferError: A file is wrong, or the disk is full.
        Cancelled: ``cancel`` was set.
        ConnectionLostError: A connection broke.
    """
    settings = settings or settings_of_hosts(source.host, target.host)
    events: Events = Queue()
    items = [item for entry in files for item in ranges(entry, [(0, entry["size"])])]
    with TargetSession(target, list(files), events, manifest=None, survey=False, kind=HISTORY) as session:
        on_problem = partial(problem_error, target, source, meter)
        session.wait_for(Ready, on_problem=on_problem, cancel=cancel)
        if files:
            link = probe(source.host, target.host, replace(settings, route=RELAY))
            queue = SendQueue(StreamRoute(source, target, link, replace(settings, streams=1), HISTORY), deque(items))
            limit = settings.bandwidth_limit
            pool = StreamPool(session, events, [queue], meter, explain=explain, bandwidth_limit=limit, cancel=cancel)
            pool.run({entry["path"] for entry in files}, landed=session.commit)
        else:
            session.commit()
        session.wait_for(Committed, on_problem=on_problem, cancel=cancel)
