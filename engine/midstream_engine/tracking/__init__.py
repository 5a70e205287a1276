"""Where metrics go."""

from midstream_engine.tracking.metrics import MetricsFile
from midstream_engine.tracking.recorder import Recorder

__all__ = ["MetricsFile", "Recorder"]
