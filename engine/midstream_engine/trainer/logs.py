"""The log: stderr, and the attempt's file where no launcher redirected it there."""

from __future__ import annotations

import logging
import sys
import time

FORMAT = "%(asctime)s %(levelname).1s %(message)s"


def start_logging(path: str | None) -> None:
    """Log to stderr and, where ``path`` is given, to that file too. Times are UTC."""
    formatter = logging.Formatter(FORMAT, "%Y-%m-%dT%H:%M:%SZ")
    formatter.converter = time.gmtime
    root = logging.getLogger()
    root.setLevel(logging.INFO)
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr)]
    if path is not None:
        handlers.append(logging.FileHandler(path, encoding="utf-8"))
    for handler in handlers:
        handler.setFormatter(formatter)
        root.addHandler(handler)
    for noisy in ("jax", "absl", "jaxlib"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    logging.captureWarnings(True)
