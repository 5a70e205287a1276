"""Type of the manifest of tokens: of a cache, a mixture, or imported data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DataManifest = Mapping[str, Any]  # ``format`` says which fields there are
