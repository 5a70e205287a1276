"""Accelerators by the kinds of devices, as drivers name them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from midstream_core import accelerator_types
from midstream_core.accelerator_types import AcceleratorType


def accelerators_of_devices(kinds: Sequence[str]) -> AcceleratorType | None:
    """Return the accelerators that devices of these kinds are; None if no type fits."""
    if not kinds or len(set(kinds)) > 1:
        return None
    count, kind = len(kinds), kinds[0]
    names = {"TPU v4": f"v4-{2 * count}", "TPU v5 lite": f"v5e-{count}", "TPU v5e": f"v5e-{count}",
             "TPU v5": f"v5p-{2 * count}", "TPU v5p": f"v5p-{2 * count}", "TPU v6 lite": f"v6e-{count}",
             "TPU v6e": f"v6e-{count}", "TPU7x": f"tpu7x-{count}"}  # fmt: skip
    name = names.get(kind, "")
    if match := re.search(r"\b(A100|H100|H200)\b", kind):
        model = match[1].lower()
        small = model == "a100" and "80" not in kind
        name = f"a100-40x{count}" if small else f"a100-80x{count}" if model == "a100" else f"{model}x{count}"
    try:
        return accelerator_types.parse(name)
    except ValueError:
        return None
