"""docs/reference/configuration.md matches the dataclasses."""

from __future__ import annotations

from pages import configuration_page
from support.paths import CONFIGS

REMEDY = "make pages"


def test_config_page_is_current() -> None:
    page = (CONFIGS.parent / "docs" / "reference" / "configuration.md").read_text()
    assert page == configuration_page.document(), REMEDY


def test_config_fields_have_descriptions() -> None:
    undescribed = [line for line in configuration_page.document().splitlines() if line.endswith("|  |")]
    assert undescribed == [], "write a comment beside the field"


def test_config_description_is_the_comment_of_a_field() -> None:
    page = configuration_page.document()
    assert "| `seed` | int | `0` | of initialisation, data order and dropout |" in page
    assert "| `load_checkpoint` | bool or None | `null` | None: the newest checkpoint of the run" in page
    assert "| `keep` | list[KeepEvery] | `[{every: 10000}]` |" in page
    assert "| `trainer.per_device_train_parallelism` | `trainer.per_device_parallelism` |" in page
