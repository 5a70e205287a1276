"""Where metrics go."""

from midstream_engine.tracking.metrics import MetricsFile

__all__ = ["MetricsFile"]
