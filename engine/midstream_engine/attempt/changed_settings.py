"""Settings that differ from those that a checkpoint was trained with."""

from __future__ import annotations

import json
import logging

from midstream_core.json_types import JsonValue
from midstream_engine.attempt.resume import Origin
from midstream_engine.config.train import TrainLmConfig

log = logging.getLogger(__name__)
# Keys whose values are paths or names: they differ between hosts while the run is the same.
_PATHS = ("data.cache_dir", "trainer.id", "trainer.jax_compilation_cache_dir", "trainer.log_dir", "trainer.root")


def report_changes(origin: Origin, config: TrainLmConfig) -> None:
    """Log in one line what differs from the configuration that trained ``origin``."""
    if not origin.same_run:
        return
    changed = [
        f"{key}: was {json.dumps(before)}, is now {json.dumps(now)}"
        for key, (before, now) in changed_settings(origin, config).items()
    ]
    if changed:
        log.warning("the configuration differs from that of %s: %s", origin.name, "; ".join(changed))


def changed_settings(origin: Origin, config: TrainLmConfig) -> dict[str, tuple[JsonValue, JsonValue]]:
    """Return settings that differ from those that trained ``origin``, by flag.

    Each has the value before and the value now. Empty where the checkpoint has not recorded it. Paths and names do not
    count.
    """
    if not origin.config:
        return {}
    before, now = (_flat(json.loads(json.dumps(configuration))) for configuration in (origin.config, config.resolved()))
    return {
        key: (before.get(key), now.get(key))
        for key in sorted(before.keys() | now.keys())
        if key not in _PATHS and before.get(key) != now.get(key)
    }


def _flat(value: dict[str, JsonValue], above: str = "") -> dict[str, JsonValue]:
    """Return the values by the names of their flags."""
    flat: dict[str, JsonValue] = {}
    for key, inner in value.items():
        flat |= _flat(inner, f"{above}{key}.") if isinstance(inner, dict) else {above + key: inner}
    return flat
