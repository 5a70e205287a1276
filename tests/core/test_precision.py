"""Precision policies in the notation of jmp."""

from __future__ import annotations

import numpy as np
import pytest

from midstream_core.precision import Precision, precision_of, rounds_products


@pytest.mark.parametrize(
    "text",
    ["f32", "full", "bf16", "bfloat16", "f16", "float16", "p=bf16", "c=f16", "p=f32,c=bfloat16",
     "params=f16,compute=bf16,output=f32", "o=bf16"],
)  # fmt: skip
def test_policies_mean_what_they_mean_in_jmp(text: str) -> None:
    import jmp  # with jax, which each process that collects tests would import

    policy, ours = jmp.get_policy(text), Precision.parse(text)
    theirs = [np.dtype(dtype).name for dtype in (policy.param_dtype, policy.compute_dtype, policy.output_dtype)]
    assert [ours.parameters, ours.compute, ours.output] == theirs
    assert Precision.parse(str(ours)) == ours


def test_half_does_not_depend_on_the_device() -> None:
    assert Precision.parse("half") == Precision("float16", "float16", "float16")


@pytest.mark.parametrize("text", ["", "f31", "p=f31", "q=f32", "bf16,c=f32", "p=f32,,c=f32", "p=f32;c=f32"])
def test_what_is_no_policy_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no"):
        Precision.parse(text)
    assert precision_of(text) == Precision("float32", "float32", "float32")


@pytest.mark.parametrize(
    ("mp", "chosen", "products", "rounds"),
    [
        ("f32", None, "highest", False), ("f32", "highest", "highest", False), ("f32", "default", None, True),
        ("p=bf16,c=f32", None, "highest", False), ("p=f32,c=bfloat16", "highest", None, False),
        ("half", "default", None, False), (None, "default", None, True),
    ],
)  # fmt: skip
def test_only_float32_has_a_precision_of_products(
    mp: str | None, chosen: str | None, products: str | None, rounds: bool
) -> None:
    assert precision_of(mp).of_products(chosen) == products
    assert rounds_products(mp, chosen) is rounds
