"""Values of other libraries' files. Their readers check what they use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TorchValue = Any  # of a file that torch saved: plain values, tensors and records
TorchState = Mapping[str, TorchValue]
ForeignValue = Any  # of a configuration of another library
ForeignConfig = Mapping[str, ForeignValue]
