"""Signals to an attempt's processes; a request to stop, repeated until heeded.

SLURM may lose a signal, not know the job any more, or not answer. The engine of a job then gets the command to stop in
its own directory, which needs no controller.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor

from midstream.errors import ConnectionLostError, RemoteError
from midstream.hosts.host_pool import HostPool
from midstream.install.errors import LaunchError
from midstream.launch.rank_view import RankView
from midstream.launch.start_attempt import Rank
from midstream_core import records
from midstream_host.runs import ownership, run_state

CONCURRENCY = 32  # hosts that are requested at the same time
SCANCEL_TIMEOUT = 60.0  # seconds for which a signal is repeated that SLURM does not accept
SCANCEL_INTERVAL = 5.0  # seconds
PAUSED = "PausedJobError"
REPEAT_INTERVALS = (10.0, 20.0, 40.0, 60.0)  # seconds until a request without an effect is repeated; then the last


def signal_ranks(hosts: HostPool, ranks: Sequence[Rank], run_id: str, number: int, name: str) -> None:
    """Send a signal to the processes of every host that can be reached.

    Raises:
        ConnectionLostError: No host could be reached.
        LaunchError: SLURM did not accept the signal.
    """
    names = list(dict.fromkeys(rank.host for rank in ranks))
    end = time.monotonic() + SCANCEL_TIMEOUT

    def send(host_name: str) -> str:
        host = hosts.lookup(host_name)
        while True:
            try:
                host.connect()
                host.call(run_state.signal)(root=host.root, run_id=run_id, attempt=number, name=name)
            except ConnectionLostError as error:
                return error.message
            except RemoteError as error:
                if error.kind == PAUSED:
                    raise LaunchError(error.message, "no signal was sent to the engine") from error
                if error.kind != "SlurmError":
                    raise
                if time.monotonic() > end:
                    raise LaunchError(error.message, "no signal was sent to the engine; try again") from error
                time.sleep(SCANCEL_INTERVAL)
            else:
                return ""

    _raise_if_all_lost(names, _on_each(send, names))


class StopRequest:
    """A request to stop, repeated: SIGTERM, and the command for the engine of a job."""

    def __init__(
        self, hosts: HostPool, ranks: Sequence[Rank], run_id: str, number: int, before: Collection[RankView]
    ) -> None:
        """Prepare. ``before``: the processes before the request."""
        self._hosts, self._ranks, self._run_id, self._number = hosts, ranks, run_id, number
        self._messages = {(rank.host, rank.process): _message(rank) for rank in before}
        # The engine of a job that runs, whatever its controller answers.
        self._is_job = any(rank.job for rank in before)
        self._begun = any(rank.status is not None and rank.running for rank in before)
        self.count = 0  # of the requests
        self._last = 0.0

    def send(self) -> None:
        """Send the first one.

        Raises:
            ConnectionLostError: No host could be reached.
            LaunchError: SLURM did not accept the signal, and there is no engine that reads commands.
        """
        if self._is_job and self._begun:
            names = list(dict.fromkeys(rank.host for rank in self._ranks))
            _raise_if_all_lost(names, _on_each(lambda name: self._request(name, command=False), names))
        else:
            signal_ranks(self._hosts, self._ranks, self._run_id, self._number, "SIGTERM")
        self._sent()

    def repeat(self, views: Sequence[RankView]) -> None:
        """Repeat it where it has had no effect for some time.

        ``views``: the processes now.
        """
        interval = REPEAT_INTERVALS[min(self.count, len(REPEAT_INTERVALS)) - 1]
        if time.monotonic() - self._last < interval:
            return
        names = list(dict.fromkeys(rank.host for rank in self.unheeded(views)))
        if names:
            _on_each(lambda name: self._request(name, command=self._is_job), names)
            self._sent()

    def unheeded(self, views: Sequence[RankView]) -> list[RankView]:
        """Return the processes that run and do not show that they have the request."""
        return [
            rank
            for rank in views
            if rank.running
            and rank.status is not None
            and rank.status.state not in (records.STOPPING, *records.ENDED)
            and _message(rank) in ("", self._messages.get((rank.host, rank.process), ""))
        ]

    def _sent(self) -> None:
        self.count, self._last = self.count + 1, time.monotonic()

    def _request(self, host_name: str, command: bool) -> str:
        """Signal the processes of a host; return why it could not be reached.

        ``command``: write the command too, also where the signal was accepted.
        """
        host = self._hosts.lookup(host_name)
        try:
            host.connect()
            try:
                sent = host.call(run_state.signal)(
                    root=host.root, run_id=self._run_id, attempt=self._number, name="SIGTERM"
                )
            except RemoteError as error:
                if error.kind == PAUSED:
                    raise LaunchError(error.message, "no signal was sent to the engine") from error
                if error.kind != "SlurmError":
                    raise
                sent = False
            if command or (not sent and self._is_job):
                # Its epoch is not above the engine's: it seals nothing.
                stop = records.Command(records.STOP).to_json()
                host.call(ownership.send_command)(
                    root=host.root, run_id=self._run_id, attempt=self._number, command=stop
                )
        except ConnectionLostError as error:
            return error.message
        return ""


def _message(rank: RankView) -> str:
    return rank.status.message if rank.status is not None else ""


def _on_each(send: Callable[[str], str], names: Sequence[str]) -> list[str]:
    with ThreadPoolExecutor(CONCURRENCY) as pool:
        return [error for error in pool.map(send, names) if error]


def _raise_if_all_lost(names: Sequence[str], errors: Sequence[str]) -> None:
    if errors and len(errors) == len(names):
        raise ConnectionLostError(errors[0], "no signal was sent to the engine; try again")
