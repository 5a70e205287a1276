"""Which arrays of an imported run decay, as settings of the engine."""

from __future__ import annotations

import re
from collections.abc import Mapping


def decay_settings(decays: Mapping[str, bool]) -> dict[str, object]:
    """Return our settings of weight decay. ``decays``: by the names of our arrays."""
    if all(decays.values()):
        return {"weight_decay_modules": None, "default_weight_decay_mask": False}
    if not any(decays.values()):
        return {"weight_decay": 0.0}
    names = sorted(re.escape(name.replace("/", ".")) for name, decayed in decays.items() if decayed)
    return {"weight_decay_modules": f"(?:{'|'.join(names)})$", "default_weight_decay_mask": False}
