"""Learning rates equal those of two releases of Levanter, at every update and a few beyond the last.

The rates were recorded by tests/fixtures/levanter/generate_schedules.py. The engine's (jax) and the planner's (numbers)
are held against them.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest

from midstream_core.learning_rate import rate_at, rate_parts, rate_settings
from midstream_engine.config import ConfigError
from midstream_engine.config.load import from_mapping
from midstream_engine.optim.schedule import learning_rate
from support.paths import FIXTURES

SCHEDULES = FIXTURES / "levanter" / "schedules"


def recorded(release: str) -> list[tuple[dict[str, Any], np.ndarray | None]]:
    """Return each setting with its rates; None where Levanter raises or has no number."""
    with np.load(SCHEDULES / f"{release}.npz") as found:
        settings = json.loads(str(found["settings"]))
        sound = ~found["raises"] & np.isfinite(found["rates"]).all(1)
        rates = found["rates"]
    return [(one, rates[row] if sound[row] else None) for row, one in enumerate(settings)]


def resolved(optimizer: dict[str, Any], release: str) -> Any:
    return from_mapping({"optimizer": {**optimizer, "schedule_rules": release}}).config.optimizer


@pytest.mark.parametrize("release", ["levanter-0.2", "levanter-1.2"])
def test_rates_equal_levanters_or_are_refused_where_it_fails(release: str) -> None:
    compared = 0
    for one, wanted in recorded(release):
        total, optimizer = one["total"], one["optimizer"]
        if wanted is None:
            with pytest.raises(ConfigError):
                learning_rate(resolved(optimizer, release), total)
            continue
        if optimizer["lr_schedule"] == "inv" and optimizer.get("min_lr_ratio") == 0.0:
            continue  # refused here also where nothing decays
        config = resolved(optimizer, release)
        got = np.asarray(learning_rate(config, total)(np.arange(len(wanted))))
        np.testing.assert_allclose(got, wanted, rtol=2e-6, atol=1e-9, err_msg=str(one))
        parts = rate_parts(rate_settings(dataclasses.asdict(config)), total)
        planned = [rate_at(parts, step) for step in range(len(wanted))]
        np.testing.assert_allclose(planned, wanted, rtol=2e-6, atol=1e-9, err_msg=str(one))
        compared += 1
    assert compared > 500


def test_releases_differ_where_warmup_and_decay_overlap() -> None:
    """Levanter 1.2 skips the warmup of this configuration; 0.2 keeps it."""
    optimizer = {"learning_rate": 1.0, "warmup": 0.1, "decay": 1.0}
    rates = {release: learning_rate(resolved(optimizer, release), 100) for release in ("levanter-0.2", "levanter-1.2")}
    assert float(rates["levanter-0.2"](0)) == 0.0
    assert float(rates["levanter-1.2"](0)) == 1.0
