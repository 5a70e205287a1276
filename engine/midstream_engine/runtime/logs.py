"""Log output: stderr, and the attempt's file unless stderr is redirected to it."""

from __future__ import annotations

import logging
import os
import sys
import time

FORMAT = "%(asctime)s %(levelname).1s %(message)s"


def start_logging(*paths: str | None) -> None:
    """Log to stderr and to ``paths`` (None is skipped), in UTC.

    A path that cannot be written is a warning.
    """
    formatter = logging.Formatter(FORMAT, "%Y-%m-%dT%H:%M:%SZ")
    formatter.converter = time.gmtime
    root = logging.getLogger()
    root.setLevel(logging.INFO)
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr)]
    refused: list[OSError] = []
    for path in paths:
        if path is None:
            continue
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            handlers.append(logging.FileHandler(path, encoding="utf-8"))
        except OSError as error:
            refused.append(error)
    for handler in handlers:
        handler.setFormatter(formatter)
        root.addHandler(handler)
    for noisy in ("jax", "absl", "jaxlib"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    logging.captureWarnings(True)
    for error in refused:
        root.warning("this log file is not written: %s", error)
