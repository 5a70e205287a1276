"""The feed of a host that does not answer."""

from __future__ import annotations

import io
import threading
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from midstream.fleet.fleet import Fleet
from midstream.hosts.host_pool import HostPool
from midstream.watch import host_feed
from midstream.watch.host_feed import ANSWER_TIMEOUT, HostFeed
from midstream.watch.snapshot_store import SnapshotStore


def test_probe_without_output_is_closed_by_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A close that waits for a hanging host would otherwise get a further thread four times a second."""
    closing: list[object] = []
    monkeypatch.setattr(host_feed, "_in_background", closing.append)
    now = time.monotonic()
    clock = SimpleNamespace(monotonic=lambda: now, time=time.time)
    monkeypatch.setattr(host_feed, "time", clock)
    feed = HostFeed("a", HostPool(Fleet()), SnapshotStore({"a": "local"}), 1.0)
    feed._connected, feed._process = (
        True,
        cast("Any", SimpleNamespace(stdin=io.BytesIO(), close=threading.Event().wait)),
    )
    for seconds, closed in ((1.0, 0), (ANSWER_TIMEOUT + 1, 1), (1.0, 1), (1.0, 1), (ANSWER_TIMEOUT, 2)):
        now += seconds
        feed.tick()
        assert len(closing) == closed
