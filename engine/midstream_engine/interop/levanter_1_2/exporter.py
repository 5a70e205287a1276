"""Export of a run to Levanter 1.2: zarr 2, a directory for each array."""

from __future__ import annotations

from midstream_core.learning_rate import LEVANTER_1_2
from midstream_engine.interop.exported_run import ExportedRun
from midstream_engine.interop.exporters import Exported, ExportOptions
from midstream_engine.interop.levanter.exporter import write


def export(run: ExportedRun, directory: str, options: ExportOptions) -> Exported:
    """Write the run to ``directory``: ``step-N`` and ``config.yaml``; see `Exporter`."""
    del options
    return write(run, directory, LEVANTER_1_2)
