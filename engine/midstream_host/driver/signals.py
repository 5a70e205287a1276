"""Signals that a driver obeys; they are blocked, and taken by waiting for them."""

from __future__ import annotations

import signal
from typing import Optional

POLL_INTERVAL = 0.1  # seconds
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
SIGNALS = (*STOPS, signal.SIGUSR1)


def block_signals() -> None:
    """Block the signals in this thread, and in those that it starts.

    `wait_for_signal` takes them.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def wait_for_signal(seconds: float = POLL_INTERVAL) -> Optional[signal.Signals]:
    """Wait for at most ``seconds``; return the signal that has arrived, or None."""
    arrived = signal.sigtimedwait(SIGNALS, seconds)
    return None if arrived is None else signal.Signals(arrived.si_signo)
