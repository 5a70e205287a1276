"""Export of a checkpoint by the writer of a format.

Each is in a room of its own: ``<format>/exporter.py``.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import Protocol

from midstream_engine.interop.exported_run import ExportedRun


@dataclass(frozen=True)
class ExportOptions:
    """Options of an export."""

    dtype: str = "float32"  # of the weights; another one with huggingface alone
    max_shard_size: int = 5 * 10**9  # bytes of a file of weights, at most
    processes: int = 1  # data-parallel ones that load it; neox and deepspeed alone
    pipe_parallel_size: int = 1  # stages of neox: 1, with a file for each layer, or 0
    model_parallel_size: int = 1  # tensor-parallel ranks of neox
    zero_stage: int = 1  # of neox and deepspeed: 1, or 0


@dataclass(frozen=True)
class Exported:
    """The result of an export.

    ``files`` are named to the user. ``notes``: a line for each thing that differs, or has to be set there.
    """

    files: list[str]
    notes: list[str] = field(default_factory=list[str])


class Exporter(Protocol):
    """The module of a format."""

    def export(self, run: ExportedRun, directory: str, options: ExportOptions) -> Exported:
        """Write the run to the empty ``directory``, which is renamed afterwards.

        Raises:
            ConversionError: The format cannot have the run's state; the message has both values.
        """
        ...


def exporter_of(name: str) -> Exporter:
    """Return the writer of a format, a key of ``EXPORT_FORMATS``."""
    module: Exporter = importlib.import_module(f"midstream_engine.interop.{name.replace('-', '_')}.exporter")  # pyright: ignore[reportAssignmentType]
    return module
