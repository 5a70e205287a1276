"""models.row_product: the product, its gradients, and what XLA for CPUs makes of them."""

from __future__ import annotations

import re
from collections.abc import Callable

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from haliax import Axis, NamedArray

from midstream_engine.models.row_product import row_product

pytestmark = [
    # haliax 1.4 uses names that jax 0.10 deprecates.
    pytest.mark.filterwarnings("ignore:jax.core.is_constant_dim is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:jax.interpreters.pxla.thread_resources is deprecated:DeprecationWarning"),
]
Batch, Position, Embed = Axis("batch", 4), Axis("position", 32), Axis("embed", 16)
Heads, HeadSize = Axis("heads", 3), Axis("head_size", 8)
Product = Callable[[NamedArray, NamedArray], NamedArray]


def drawn(*axes: Axis, seed: int = 0) -> NamedArray:
    return hax.random.normal(jax.random.key(seed), axes)


def gradients(product: Product, x: NamedArray, weight: NamedArray) -> tuple[NamedArray, NamedArray]:
    return jax.grad(lambda pair: hax.sum(hax.sin(product(*pair))).scalar())((x, weight))


@pytest.mark.parametrize(
    ("axes", "inside", "outside"),
    [
        ((Batch, Position, Embed), (Embed,), (Heads, HeadSize)),
        ((Batch, Heads, Position, HeadSize), (Heads, HeadSize), (Embed,)),
    ],
)
def test_rows_have_the_product_and_its_gradients(
    axes: tuple[Axis, ...], inside: tuple[Axis, ...], outside: tuple[Axis, ...]
) -> None:
    x, weight = drawn(*axes), drawn(*inside, *outside, seed=1)

    def plain(x: NamedArray, weight: NamedArray) -> NamedArray:
        return hax.dot(x, weight, axis=inside)

    def by_rows(x: NamedArray, weight: NamedArray) -> NamedArray:
        return row_product(x, weight, inside)

    assert by_rows(x, weight).axes == (Batch, Position, *outside)
    found, wanted = ((each(x, weight), *gradients(each, x, weight)) for each in (by_rows, plain))
    for mine, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(mine.array, other.rearrange(mine.axes).array, rtol=2e-5, atol=2e-5)


def test_gradient_of_a_weight_needs_no_transposed_copy() -> None:
    """The sum over batch and position is one product of matrices as they are stored."""
    x, weight = drawn(Batch, Position, Embed), drawn(Embed, HeadSize, seed=1)

    def transposed(product: Product) -> list[str]:
        text = jax.jit(lambda x, w: gradients(product, x, w)).lower(x, weight).compile().as_text() or ""
        return re.findall(rf"f32\[{HeadSize.size},{Batch.size * Position.size}\]", text)

    assert transposed(lambda x, weight: hax.dot(x, weight, axis=Embed)), "XLA no longer makes the copy"
    assert not transposed(lambda x, weight: row_product(x, weight, (Embed,)))


def test_one_axis_of_rows_is_left_as_it_is() -> None:
    x, weight = drawn(Position, Embed), drawn(Embed, HeadSize, seed=1)
    assert jnp.array_equal(row_product(x, weight, (Embed,)).array, hax.dot(x, weight, axis=Embed).array)
