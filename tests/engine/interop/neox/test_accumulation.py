"""Gradients that DeepSpeed's pipeline added up: moments, epsilon and the largest norm become those of means.

That the next updates then have DeepSpeed's losses is in test_neox.py, for fixtures with pipelines.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from midstream_engine.interop.errors import ConversionError
from midstream_engine.interop.neox.accumulation import gradient_scale
from midstream_engine.interop.neox.directory import find
from midstream_engine.interop.neox.importer import open_neox
from midstream_engine.interop.neox.reader import read
from support.paths import FIXTURES

FIXTURE = FIXTURES / "neox" / "sequential-bf16-z1-pp2-dp2"
BATCHES = {"train_batch_size": 24, "train_micro_batch_size_per_gpu": 2}


def factor_of(version: str | None, stages: int, settings: dict[str, Any], **state: Any) -> int:
    found = {"ds_version": version, "dp_world_size": 3, **state}
    return gradient_scale(found, settings, stages, "there").factor


@pytest.mark.parametrize(
    ("version", "stages", "factor"),
    [
        ("0.16.5", 0, 1), ("0.16.5", 1, 4), ("0.16.0", 2, 4), ("0.16.5+91d1c55b", 1, 4), ("0.18.2", 2, 4),
        ("0.15.4", 2, 1), ("0.12.4+02e2ebf7", 1, 1), (None, 2, 1), ("0.18.3", 1, 1), ("0.19.3", 2, 1), ("1.0.0", 4, 1),
    ],
)  # fmt: skip
def test_versions_that_add_up_gradients(version: str | None, stages: int, factor: int) -> None:
    assert factor_of(version, stages, BATCHES) == factor


def test_number_of_micro_batches_comes_from_any_record() -> None:
    assert factor_of("0.16.5", 1, {}, ds_config=BATCHES) == 4
    assert factor_of("0.16.5", 1, {"gradient_accumulation_steps": 8}) == 8
    assert factor_of("0.16.5", 1, {**BATCHES, "train_batch_size": 6}) == 1
    with pytest.raises(ConversionError, match="gradient-accumulation-steps"):
        factor_of("0.16.5", 1, {})


def test_stages_of_different_scale_are_refused() -> None:
    with pytest.raises(ConversionError, match="issue 8152"):
        factor_of("0.19.2", 2, BATCHES)
    assert factor_of("0.19.2", 2, {**BATCHES, "train_batch_size": 6}) == 1


def test_moments_epsilon_and_clipping_are_of_means() -> None:
    adopted, found = open_neox(str(FIXTURE)), read(find(str(FIXTURE)))
    arrays = {array.name: array for array in adopted.arrays}
    stored = found.parameters[5, "norm.weight"].rows[0]
    for kind, name, factor in (("exp_avg", "mu", 3), ("exp_avg_sq", "nu", 9)):
        taken = arrays[f"optimizer/adam/{name}/final_layer_norm/weight"].value()
        np.testing.assert_array_equal(taken, stored[kind].read() / np.float32(factor))
    np.testing.assert_array_equal(arrays["model/final_layer_norm/weight"].value(), stored["fp32"].read())
    embedding = found.parameters[0, "word_embeddings.weight"].rows[0]["exp_avg_sq"].read()
    taken = arrays["optimizer/adam/nu/token_embeddings/weight"].value()
    np.testing.assert_array_equal(taken, embedding / np.float32(9))
    assert adopted.mapping["optimizer"]["epsilon"] == 1e-8 / 3
    assert adopted.mapping["optimizer"]["max_grad_norm"] == 1 / 3
    assert [note for note in adopted.notes if "added up the gradients of 3 micro-batches" in note]
