"""The word that what stands by on a target waits for: that somebody still wants it."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from midstream.errors import HostError

if TYPE_CHECKING:
    from midstream.hosts.host_pool import Hosts
    from midstream.migrate.model import Plan

ENDING = 5.0  # seconds
EVERY = 30.0  # seconds; far less than the hour that an attempt waits without a word


class LeaseRenewal:
    """Renews the lease of what stands by for a migration, in a thread of its own, while the process that carries the
    migration out lives. A target that does not answer is tried again the next time: silence ends nothing at once."""

    def __init__(self, hosts: Hosts, plan: Plan, every: float = EVERY):
        self._hosts, self._plan, self._every = hosts, plan, every
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="standby-lease", daemon=True)

    def start(self) -> None:
        if self._plan.stands_by:
            self._thread.start()

    def stop(self) -> None:
        """No further word. One that is under way is not waited for long."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(ENDING)

    def _work(self) -> None:
        plan = self._plan
        while not self._over.wait(self._every):
            with contextlib.suppress(HostError):
                target = self._hosts.get(plan.target_host)
                target.call("runs.standby_state.renew", root=target.root, run_id=plan.run_id, migration=plan.migration)
