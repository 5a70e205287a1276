"""Where metrics go."""

from midstream_engine.tracking.metrics_file import MetricsFile
from midstream_engine.tracking.metrics_recorder import Recorder

__all__ = ["MetricsFile", "Recorder"]
