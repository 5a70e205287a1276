"""Logical names of arrays: independent of the mesh, and unambiguous."""

from __future__ import annotations

import equinox as eqx
import haliax as hax
import haliax.nn as hnn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from midstream_engine.checkpoint.array_names import flatten, flatten_shardings, unflatten

Embed, Mlp, Layers = hax.Axis("embed", 8), hax.Axis("mlp", 16), hax.Axis("layers", 3)


class Block(eqx.Module):
    up: hnn.Linear
    activation: object

    @staticmethod
    def init(*, key):
        return Block(hnn.Linear.init(Embed, Mlp, key=key), jax.nn.gelu)


class Training(eqx.Module):
    model: object
    opt_state: object
    key: jax.Array
    step: jax.Array
    rate: float = 0.5


@pytest.fixture
def training() -> Training:
    model = hnn.Stacked.init(Layers, Block)(key=jax.random.split(jax.random.key(0), 3))
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(optax.constant_schedule(1e-3)))
    return Training(model, optimizer.init(eqx.filter(model, eqx.is_array)), jax.random.key(5), jnp.array(4))


def test_names_are_fields_and_indices_with_axes(training: Training) -> None:
    arrays = flatten(training)
    assert {name: array.axes for name, array in arrays.items()} == {
        "key": ("key<fry>",),
        "model/stacked/up/bias": ("layers", "mlp"),
        "model/stacked/up/weight": ("layers", "mlp", "embed"),
        "opt_state/1/0/count": (),
        "opt_state/1/0/mu/stacked/up/bias": ("layers", "mlp"),
        "opt_state/1/0/mu/stacked/up/weight": ("layers", "mlp", "embed"),
        "opt_state/1/0/nu/stacked/up/bias": ("layers", "mlp"),
        "opt_state/1/0/nu/stacked/up/weight": ("layers", "mlp", "embed"),
        "opt_state/1/2/count": (),
        "step": (),
    }
    assert list(arrays) == sorted(arrays)
    assert (arrays["key"].shape, arrays["key"].dtype) == ((2,), "uint32")


def test_template_has_the_same_names_shapes_and_dtypes(training: Training) -> None:
    template = eqx.filter_eval_shape(lambda: training)
    described = {name: (a.axes, a.shape, a.dtype) for name, a in flatten(training).items()}
    assert {name: (a.axes, a.shape, a.dtype) for name, a in flatten(template).items()} == described


def test_unflatten_inverts_flatten_with_keys_and_functions(training: Training) -> None:
    template = eqx.filter_eval_shape(lambda: training)
    again = unflatten(template, {name: array.value for name, array in flatten(training).items()})
    assert jax.tree_util.tree_structure(again) == jax.tree_util.tree_structure(training)
    assert again.key.dtype == training.key.dtype
    assert again.rate == 0.5
    for name, array in flatten(again).items():
        np.testing.assert_array_equal(np.asarray(array.value), np.asarray(flatten(training)[name].value))


def test_key_generator_is_part_of_the_axes() -> None:
    assert flatten({"key": jax.random.key(0)})["key"].axes == ("key<fry>",)
    assert flatten({"key": jax.random.key(0, impl="rbg")})["key"].axes == ("key<rbg>",)
    assert flatten({"keys": jax.random.split(jax.random.key(0), 3)})["keys"].axes == ("dim_0", "key<fry>")


@pytest.mark.parametrize("name", ["a/b", "..", "", "a b", "-x", ".hidden"])
def test_invalid_path_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be a part of an array's name"):
        flatten({name: np.zeros(2)})


def test_duplicate_leaf_names_are_refused() -> None:
    class Both:
        pass

    jax.tree_util.register_pytree_with_keys(
        Both,
        lambda _: (((jax.tree_util.DictKey("1"), np.zeros(2)), (jax.tree_util.SequenceKey(1), np.ones(2))), None),
        lambda *_: Both(),
    )
    with pytest.raises(ValueError, match="both named 'x/1'"):
        flatten({"x": Both()})


def test_shardings_match_around_or_inside_named_arrays(training: Training) -> None:
    one = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    inside = jax.tree_util.tree_map(lambda leaf: one if eqx.is_array(leaf) else None, training)
    instead = jax.tree_util.tree_map(
        lambda leaf: one if isinstance(leaf, hax.NamedArray) or eqx.is_array(leaf) else None,
        training,
        is_leaf=lambda leaf: isinstance(leaf, hax.NamedArray),
    )
    for shardings in (one, inside, instead):
        assert flatten_shardings(training, shardings) == dict.fromkeys(flatten(training), one)
    with pytest.raises(ValueError, match="1 shardings for 10 arrays"):
        flatten_shardings(training, [one])
