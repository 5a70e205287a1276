"""docs/configuration.md says what the dataclasses say."""

from __future__ import annotations

from midstream_engine.config import document
from support.engine_runs import CONFIGS

REMEDY = "python -m midstream_engine.config.document > docs/configuration.md"


def test_the_page_is_current() -> None:
    page = (CONFIGS.parent / "docs" / "configuration.md").read_text()
    assert page == document.document(), REMEDY


def test_every_field_has_a_meaning() -> None:
    assert document.undescribed() == [], "write a comment beside the field"


def test_a_comment_beside_or_above_a_field_is_its_meaning() -> None:
    page = document.document()
    assert "| `seed` | int | `0` | of initialisation, data order and dropout |" in page
    assert "| `load_checkpoint` | bool or None | `null` | None: the newest checkpoint of the run" in page
    assert "| `keep` | list[KeepEvery] | `[{every: 10000}]` |" in page
    assert "| `trainer.per_device_train_parallelism` | `trainer.per_device_parallelism` |" in page
