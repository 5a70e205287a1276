"""Renew the standby's lease; the standby exits when it expires."""

from __future__ import annotations

import logging
import threading

from midstream.errors import HostError
from midstream.hosts.host_pool import HostPool
from midstream.migrate.journal.plan import Plan
from midstream_host.runs import standby_state

SHUTDOWN_TIMEOUT = 5.0  # seconds
RENEW_INTERVAL = 30.0  # seconds; far below the standby's lease of one hour

_log = logging.getLogger(__name__)


class LeaseRenewal:
    """Renewal of a standby's lease in a thread, while the migration's process runs.

    An unreachable target is tried again after the interval.
    """

    def __init__(self, hosts: HostPool, plan: Plan, interval: float = RENEW_INTERVAL) -> None:
        self._hosts, self._plan, self._interval = hosts, plan, interval
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._renew_until_stopped, name="standby-lease", daemon=True)

    def start(self) -> None:
        if self._plan.has_standby:
            self._thread.start()

    def stop(self) -> None:
        """Stop renewing; wait at most `SHUTDOWN_TIMEOUT` for a call in progress."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(SHUTDOWN_TIMEOUT)

    def _renew_until_stopped(self) -> None:
        plan = self._plan
        while not self._stopped.wait(self._interval):
            try:
                target = self._hosts.get(plan.target_host)
                target.call(standby_state.renew)(root=target.root, run_id=plan.run_id, migration=plan.migration)
            except HostError:
                continue  # it is unreachable
            except Exception:  # noqa: BLE001  without this thread the standby exits after an hour
                _log.exception("the lease of the standby of %s was not renewed", plan.migration)
