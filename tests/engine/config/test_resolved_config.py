"""A run's config as its engine resolves it is still the one that it was launched with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from midstream.launch.config_difference import first_difference
from midstream.launch.config_file import config_values, read_config
from midstream_engine.config import load_config
from support.paths import REPOSITORY

CONFIGS = sorted((REPOSITORY / "configs").glob("*.yaml"))


@pytest.mark.parametrize(
    "path", [path for path in CONFIGS if path.name != "fleet.example.yaml"], ids=lambda path: path.stem
)
def test_resolved_config_is_not_another_one(path: Path) -> None:
    """On the old code both were compared as they are: no run that had trained could be launched with its own file."""
    resolved = load_config(["--config_path", str(path)]).config.resolved()
    own = yaml.safe_load(yaml.safe_dump(resolved, sort_keys=False))
    given: dict[str, Any] = {**config_values(read_config(path))}
    assert first_difference(given, own) == ""
    assert given != own
    given["optimizer"] = {**given.get("optimizer", {}), "learning_rate": 0.123}
    assert first_difference(given, own).startswith("optimizer.learning_rate is ")
