"""Where metrics go."""

from midstream_engine.tracking.metrics_file import MetricsFile
from midstream_engine.tracking.metrics_recorder import MetricsRecorder

__all__ = ["MetricsFile", "MetricsRecorder"]
