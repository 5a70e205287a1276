"""Precision of a run before and after a migration, and the consent that a live one needs for it."""

from __future__ import annotations

from typing import Any

import pytest

from midstream.launch.engine_flags import engine_flags
from midstream.migrate.modes.registry import LIVE, mode_of
from midstream.migrate.modes.work import Source
from midstream.migrate.planning.precision_changes import before_and_after, precision_changes

ROUNDED = "trainer.matmul_precision"


@pytest.mark.parametrize(
    ("trainer", "overrides", "changes", "consent"),
    [
        ({}, (), {"precision": ("f32", "f32")}, ""),
        ({"matmul_precision": "highest"}, (), {"precision": ("f32", "f32")}, ""),
        ({"matmul_precision": "default"}, (),
         {"precision": ("f32", "f32"), "matmul precision": ("default", "default")}, ROUNDED),
        ({"mp": "f32"}, ("--trainer.matmul_precision", "default"),
         {"precision": ("f32", "f32"), "matmul precision": ("highest", "default")}, ROUNDED),
        ({"matmul_precision": "default"}, ("--trainer.matmul_precision=highest",),
         {"precision": ("f32", "f32"), "matmul precision": ("default", "highest")}, ROUNDED),
        ({"mp": "bfloat16", "matmul_precision": "default"}, (), {"precision": ("bfloat16", "bfloat16")}, "in bfloat16"),
        ({}, ("--trainer.mp", "p=f32,c=bf16"), {"precision": ("f32", "p=f32,c=bf16")}, "in p=f32,c=bf16"),
    ],
)  # fmt: skip
def test_precision_of_products_is_shown_where_it_matters(
    trainer: dict[str, Any], overrides: tuple[str, ...], changes: dict[str, tuple[str, str]], consent: str
) -> None:
    found = precision_changes(trainer, engine_flags(overrides))
    assert {each.name: (each.before, each.after) for each in found} == changes
    source = Source("r", True, "training", "now", False, 0, 0.1, before_and_after(trainer, engine_flags(overrides)))
    lines = mode_of(LIVE).consent(source)
    assert len(lines) == bool(consent)
    assert consent in "".join(lines)
