"""Google's notice that this machine is about to be taken away, as its metadata server gives it: 30 s before a spot
machine is stopped, earlier before maintenance that ends it. Asked only on Google's machines, or of the server that
``GCE_METADATA_HOST`` names. Standard library alone.

https://cloud.google.com/compute/docs/metadata/getting-live-migration-notice
"""

from __future__ import annotations

import os
import threading
import urllib.request

SERVER = "GCE_METADATA_HOST"
PRODUCT = "/sys/class/dmi/id/product_name"
EVERY = 3.0  # seconds between two looks
PATIENCE = 2.0  # seconds for an answer
TAKES_AWAY = {"preempted": "TRUE", "maintenance-event": "TERMINATE"}  # what is asked for, and how the answer begins


class Notices:
    """Looks for notices in a thread of its own, from ``start`` on."""

    def __init__(self, every: float = EVERY, product: str = PRODUCT):
        self._every, self._product = every, product
        self._told: set[str] = set()
        self._new: list[str] = []
        self._lock = threading.Lock()

    def start(self) -> None:
        """Nothing on a machine that is not Google's."""
        server = os.environ.get(SERVER) or ("metadata.google.internal" if self._is_google() else "")
        if server:
            threading.Thread(target=self._look, args=(server,), name="notices", daemon=True).start()

    def take(self) -> str:
        """A notice that has come since the last call, in words; empty without one. Each is told once."""
        with self._lock:
            return self._new.pop(0) if self._new else ""

    def _look(self, server: str) -> None:
        pause = threading.Event()
        while True:
            for name, begins in TAKES_AWAY.items():
                said = ask(server, name)
                if said.upper().startswith(begins) and name not in self._told:
                    self._told.add(name)
                    with self._lock:
                        self._new.append(f"{name}: {said}")
                elif said and not said.upper().startswith(begins):
                    self._told.discard(name)  # it was called off: another one is news again
            pause.wait(self._every)

    def _is_google(self) -> bool:
        try:
            with open(self._product, encoding="utf-8") as file:
                return "Google" in file.read()
        except OSError:
            return False


def ask(server: str, name: str) -> str:
    """What the server says; empty where it does not answer, which says nothing."""
    url = f"http://{server}/computeMetadata/v1/instance/{name}"
    request = urllib.request.Request(url, headers={"Metadata-Flavor": "Google"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=PATIENCE) as answer:
            return answer.read(1000).decode(errors="replace").strip()
    except OSError:
        return ""
