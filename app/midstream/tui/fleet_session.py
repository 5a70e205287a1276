"""Session of the terminal UI with a fleet.

The fleet may be read after the first frame.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, cast

from midstream.errors import MidstreamError
from midstream.watch.snapshot import CONNECTING, HostView, Snapshot

if TYPE_CHECKING:
    from midstream.hosts.host_pool import HostPool
    from midstream.tui.actions import Actions
    from midstream.tui.recording import Recorder
    from midstream.watch.series_files import SeriesFiles
    from midstream.watch.watcher import Watcher

WATCH_INTERVAL = 1.0  # seconds between reports of a watched host


class UnopenedFleet(NamedTuple):
    """A fleet to open: its file, and what opens its hosts.

    ``path`` is empty where there is no file. ``kinds`` is the kind of each host by name, for the snapshot before the
    fleet is opened; None where they are not known.
    """

    path: str
    open_hosts: Callable[[], HostPool]
    kinds: Mapping[str, str] | None = None


class FleetSession:
    """Source of a fleet's snapshots, and its actions. All methods are thread-safe.

    The fleet is opened once. Until then the snapshot has its hosts as far as they are known, and nothing else.
    """

    def __init__(self, fleet: UnopenedFleet, *, recorder: Recorder | None = None, store_series: bool = True) -> None:
        """Create the session.

        Args:
            fleet: The fleet, whose hosts the session closes.
            recorder: Records snapshots and actions.
            store_series: Keep the hosts' metrics in files.
        """
        self._unopened = fleet
        self._recorder = recorder
        self._store_series = store_series
        self._lock = threading.RLock()
        self._closed = False
        self._error: MidstreamError | None = None
        self._hosts: HostPool | None = None
        self._watch: Watcher | None = None
        self._series: SeriesFiles | None = None
        self._actions: Actions | None = None
        self._subscribers: list[Callable[[Snapshot], object]] = []
        views = tuple(HostView(name, kind, CONNECTING) for name, kind in (fleet.kinds or {}).items())
        self._first = Snapshot(0, time.time(), views)

    @property
    def actions(self) -> Actions:
        """Actions on the fleet. The first one opens it."""
        return cast("Actions", _ActionsOfSession(self))

    def snapshot(self) -> Snapshot:
        """Return the current snapshot."""
        watch = self._watch
        return self._first if watch is None else watch.snapshot()

    def subscribe(self, callback: Callable[[Snapshot], object]) -> Callable[[], object]:
        """Call ``callback`` with the newest snapshot after changes.

        Return a function that unsubscribes it.
        """
        with self._lock:
            if self._watch is not None:
                return self._watch.subscribe(callback)
            self._subscribers.append(callback)
        return lambda: self._subscribers.remove(callback)

    def open(self) -> Actions:
        """Read the fleet, if it has not been read yet. Return its actions.

        Raises:
            MidstreamError: It cannot be read; the next call raises it again.
        """
        with self._lock:
            if self._error is not None:
                raise self._error
            if self._actions is None:
                try:
                    self._hosts = self._unopened.open_hosts()
                except MidstreamError as error:
                    self._error = error
                    raise
                self._actions = self._open(self._hosts)
            return self._actions

    def _open(self, hosts: HostPool) -> Actions:
        from midstream.tui.actions import Actions
        from midstream.watch.watcher import Watcher

        fleet, recorder = hosts.fleet, self._recorder
        watch = Watcher(fleet, hosts, interval=WATCH_INTERVAL, listener=recorder.record if recorder else None)
        if self._store_series and fleet.path:
            from midstream.watch.series_files import SeriesFiles

            self._series = SeriesFiles(str(fleet.path), watch.snapshot().system)
        for callback in self._subscribers:
            watch.subscribe(callback)
        self._watch = watch
        actions = Actions(fleet, hosts)
        return recorder.wrap(actions) if recorder else actions

    def start(self) -> None:
        """Open the fleet and connect its hosts, in the background.

        Raises:
            MidstreamError: The fleet cannot be read.
        """
        from midstream.watch.known_fleets import remember_fleet

        with self._lock:
            if self._closed:
                return
            self.open()
            assert self._watch is not None
            assert self._hosts is not None
            self._watch.start()
            if self._series is not None:
                self._series.start()
            fleet = self._hosts.fleet
        remember_fleet(fleet)

    def close(self) -> None:
        """Stop to watch and close the hosts. Idempotent.

        What is kept of this session is written.
        """
        with self._lock:
            self._closed = True
            watch, hosts = self._watch, self._hosts
        if watch is None or hosts is None:
            return
        from midstream.watch.known_devices import remember_devices
        from midstream.watch.known_names import remember_names
        from midstream.watch.known_owners import remember_owners

        remember_names(hosts.fleet, watch.snapshot())
        remember_devices(hosts.fleet, watch.snapshot())
        remember_owners(watch.snapshot())
        watch.stop()
        if self._series is not None:
            self._series.stop()
        hosts.close()


class _ActionsOfSession:
    """Actions of a session's fleet, which each of them opens."""

    def __init__(self, session: FleetSession) -> None:
        self._session = session

    def __getattr__(self, name: str) -> object:
        return getattr(self._session.open(), name)
