"""Levanter's fields: the page about them, and what the loader does with those that have no counterpart."""

from __future__ import annotations

import json
from typing import Any

import pytest

from midstream_engine.config import ConfigError, from_mapping
from midstream_engine.config.levanter_fields import FIELDS
from pages import levanter_page
from support.paths import CONFIGS, FIXTURES

LISTS = json.loads((FIXTURES / "levanter" / "fields.json").read_text())
REMEDY = "make pages"
# Where no single field of this name exists in a configuration.
OF_DATASETS = "data.cache_dir"
REFUSED = sorted(name for name, field in FIELDS.items() if field.refused)
LEFT_OUT = sorted(name for name, field in FIELDS.items() if not field.refused and field.neutral and name != OF_DATASETS)


def nested(name: str, value: Any) -> dict[str, Any]:
    first, _, rest = name.partition(".")
    found = {first: nested(rest, value) if rest else value}
    if name in ("model.hybrid_norm", "model.input_embedding_norm", "model.use_qk_norm", "model.reference_checkpoint"):
        found["model"]["type"] = "llama"
    return found


def test_levanter_page_is_current() -> None:
    page = (CONFIGS.parent / "docs" / "reference" / "levanter.md").read_text()
    assert page == levanter_page.page(LISTS), REMEDY


def test_levanter_page_has_every_field() -> None:
    """Of the guide and of each release, or the section that it belongs to."""
    named = {row.name for row in levanter_page.rows(LISTS)}
    for release, fields in LISTS.items():
        for name in fields:
            plain = levanter_page.plain(name)
            section = any(
                one.startswith((f"{name}.", f"{name}[")) or levanter_page.plain(one) == plain for one in named
            )
            assert name in named or section, (release, name)


def test_field_without_counterpart_is_none_of_ours() -> None:
    assert [name for name in FIELDS if levanter_page.ours(name) is not None] == [OF_DATASETS, "optimizer.epsilon"]


def test_levanter_page_names_a_field_that_is_unknown() -> None:
    with pytest.raises(ValueError, match=r"optimizer\.brand_new"):
        list(levanter_page.rows({"9.9": {"optimizer.brand_new": "None"}}))


@pytest.mark.parametrize("name", REFUSED)
def test_field_that_changes_the_training_is_refused(name: str) -> None:
    for neutral in FIELDS[name].neutral:
        assert from_mapping(nested(name, neutral)).notes == []
    with pytest.raises(ConfigError, match=rf"{name}: 'other' is not supported: "):
        from_mapping(nested(name, "other"))


@pytest.mark.parametrize("name", LEFT_OUT)
def test_field_without_effect_gets_a_line_unless_neutral(name: str) -> None:
    for neutral in FIELDS[name].neutral:
        assert from_mapping(nested(name, neutral)).notes == []
    assert from_mapping(nested(name, "other")).notes == [f"{name} has no effect here: {FIELDS[name].reason}"]


def test_field_of_a_dataset_is_one_of_data() -> None:
    given = {
        "data": {"configs": {"a": {"train_urls": ["x"], "cache_dir": "c", "tags": ["t"], "format": {"type": "text"}}}}
    }
    assert [note.partition(" has")[0] for note in from_mapping(given).notes] == [
        "data.configs.a.cache_dir", "data.configs.a.tags",
    ]  # fmt: skip
    given["data"]["configs"]["a"]["format"] = {"type": "chat"}
    with pytest.raises(ConfigError, match=r"data\.configs\.a\.format\.type: 'chat' is not supported"):
        from_mapping(given)


def test_true_is_not_the_neutral_number_one() -> None:
    assert from_mapping({"trainer": {"replica_ici_axis_size": 1}}).notes == []
    assert len(from_mapping({"trainer": {"replica_ici_axis_size": True}}).notes) == 1
