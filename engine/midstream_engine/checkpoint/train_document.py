"""Type of ``train.json``."""

from __future__ import annotations

from typing import Any

TrainDocument = dict[str, Any]  # ``state``, ``provenance`` and ``reference_losses``
