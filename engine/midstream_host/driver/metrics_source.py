"""The reader of a trainer's metrics, as the run file describes them."""

from __future__ import annotations

import posixpath
from typing import Tuple

from midstream_host.driver.metrics.metrics_reader import MetricsReader, open_reader
from midstream_host.driver.trainer_setup import TrainerSetup

OUT = "{out}/"


def open_source(setup: TrainerSetup, log: str) -> MetricsReader:
    """Return the reader of the metrics.

    ``log``: the file of the trainer's output, which ``regex`` reads without a path.

    Raises:
        ValueError: The regular expression is none.
    """
    metrics = setup.run.metrics
    directory, pattern = _place(setup, metrics.path)
    if metrics.source == "regex" and not metrics.path:
        directory, pattern = posixpath.split(log)
    return open_reader(
        metrics.source,
        directory,
        pattern,
        first_step=metrics.first_step,
        names=metrics.names,
        expression=metrics.pattern,
    )


def _place(setup: TrainerSetup, path: str) -> Tuple[str, str]:
    """Return the directory that is searched, and the pattern below it."""
    if not path:
        return setup.out, ""
    if path.startswith(OUT):
        return setup.out, path[len(OUT) :]
    if path.startswith("/"):
        parts = path.split("/")
        first = next((number for number, name in enumerate(parts[:-1]) if set(name) & set("*?[")), len(parts) - 1)
        return "/".join(parts[:first]) or "/", "/".join(parts[first:])
    return setup.directory, path
