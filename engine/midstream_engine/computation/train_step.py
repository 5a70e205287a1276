"""One update, and one evaluation, as functions to compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import haliax as hax
import jax
import jax.numpy as jnp
import optax
from haliax import Axis, NamedArray
from jax.typing import DTypeLike

from midstream_engine.array_types import Carry, PyTree
from midstream_engine.computation.batch_division import MICRO
from midstream_engine.computation.finiteness import number_kinds
from midstream_engine.computation.train_state import StepPolicy, TrainState
from midstream_engine.config.averaging import ModelAveragingConfig
from midstream_engine.models.layers import computed_in
from midstream_engine.models.lm import BATCH, LmModel, summed_loss, token_losses
from midstream_engine.optim.averaging import update_average
from midstream_engine.optim.optimizer import schedule_count
from midstream_engine.optim.schedule import Schedule
from midstream_engine.optim.skip_step import skipped
from midstream_engine.runtime.mesh import Layout


class StepResult(NamedTuple):
    """Results of one update; float32 [] where no type is given."""

    loss: jax.Array  # mean over the batch's counted tokens, nats; with the z-loss
    gradient_norm: jax.Array  # before clipping
    learning_rate: jax.Array
    kinds: jax.Array  # int32 [arrays]: of the state's arrays of floats after the update, see `number_kinds`
    skipped: jax.Array | None  # int32 []: updates skipped so far; None if SkipStep is off


def train_step(
    optimizer: optax.GradientTransformationExtraArgs,
    schedule: Schedule,
    policy: StepPolicy,
    layout: Layout,
    *,
    eos: int | None,
    dropout: bool,
    averaging: ModelAveragingConfig | None = None,
    z_loss: float = 0.0,
) -> Callable[[TrainState, jax.Array, NamedArray, NamedArray], tuple[TrainState, StepResult]]:
    """Return the function that trains a step.

    The function maps (state, step int32 [], tokens and loss mask [micro, batch, position]) to (state, result).

    The loss is the sum over all counted tokens of the batch divided by their number, so neither the number of
    micro-batches nor an uneven mask changes the gradient. Dropout keys depend on the example's index in the global
    batch. The state keeps its shapes and dtypes; gradients, norm and update are float32.

    Args:
        optimizer: Of the run.
        schedule: Of the learning rate.
        policy: Precisions.
        layout: The mesh and mappings.
        eos: The token at which attention stops looking back; None: none.
        dropout: Whether the model has dropout.
        averaging: Of the model; None: none.
        z_loss: Weight of the z-loss, which is a part of the loss.
    """
    wide = policy.wide_gradients and jnp.finfo(policy.compute_dtype).bits < 32
    gradients = jnp.float32 if wide else policy.compute_dtype

    def summed(model: LmModel, tokens: NamedArray, mask: NamedArray, keys: NamedArray | None) -> jax.Array:
        cast = computed_in(model, policy.compute_dtype) if wide else policy.cast_to_compute(model)
        return summed_loss(cast, tokens, mask, eos=eos, keys=keys, z_loss=z_loss)

    def step_fn(
        state: TrainState, step: jax.Array, tokens: NamedArray, mask: NamedArray
    ) -> tuple[TrainState, StepResult]:
        Micro, Batch = tokens.resolve_axis(MICRO), tokens.resolve_axis(BATCH)
        counted = jnp.maximum(hax.sum(mask.astype(jnp.float32)).scalar(), 1.0)
        step_key = jax.random.fold_in(state.key, step)

        def micro_batch(number: jax.Array | int, tokens: NamedArray, mask: NamedArray) -> tuple[jax.Array, LmModel]:
            keys = _example_keys(step_key, number, Batch) if dropout else None
            loss, gradient = jax.value_and_grad(summed)(_at_least(gradients, state.model), tokens, mask, keys)
            return loss, layout.constrained(jax.tree.map(lambda leaf: leaf.astype(jnp.float32), gradient))

        if Micro.size == 1:
            total, gradient = micro_batch(0, tokens[MICRO, 0], mask[MICRO, 0])
        else:

            def add(carry: tuple[jax.Array, LmModel], inputs: Carry) -> tuple[tuple[jax.Array, LmModel], None]:
                number, tokens_array, mask_array = inputs
                axes = tokens.axes[1:]
                result = micro_batch(number, NamedArray(tokens_array, axes), NamedArray(mask_array, axes))
                return jax.tree.map(jnp.add, carry, result), None

            zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.float32), state.model)
            start = (jnp.zeros(()), layout.constrained(zeros))
            inputs = (jnp.arange(Micro.size), tokens.array, mask.array)
            (total, gradient), _ = jax.lax.scan(add, start, inputs)

        gradient = jax.tree.map(lambda leaf: leaf / counted, gradient)
        norm = optax.tree.norm(gradient)
        rate = schedule(schedule_count(state.optimizer))
        loss = total / counted
        current: PyTree = state.model
        updates, optimizer_state = optimizer.update(gradient, state.optimizer, current, loss=loss, gradient_norm=norm)  # pyright: ignore[reportArgumentType]
        model: PyTree = optax.apply_updates(current, updates)
        average = state.average
        if averaging is not None and average is not None:
            average = update_average(averaging, average, model, step)
        after = TrainState(model, optimizer_state, state.key, average)
        return after, StepResult(loss, norm, rate, number_kinds(after), skipped(optimizer_state))

    return policy.with_products(step_fn)


def _at_least(dtype: DTypeLike, model: LmModel) -> LmModel:
    """Return the model in ``dtype`` where its own precision is lower.

    The gradient is then not rounded to the model's own precision.
    """
    return jax.tree.map(lambda leaf: leaf.astype(jnp.promote_types(leaf.dtype, dtype)), model)


def evaluation_step(
    policy: StepPolicy, *, eos: int | None
) -> Callable[[LmModel, NamedArray, NamedArray], tuple[jax.Array, jax.Array]]:
    """Return the function that evaluates micro-batches.

    The function maps (model, tokens and loss mask [micro, batch, position]) to (summed loss, counted tokens), both
    float32 [].
    """

    def evaluate(model: LmModel, tokens: NamedArray, mask: NamedArray) -> tuple[jax.Array, jax.Array]:
        cast = policy.cast_to_compute(model)
        axes = tokens.axes[1:]

        def add(carry: jax.Array, inputs: Carry) -> tuple[jax.Array, None]:
            losses = token_losses(cast, NamedArray(inputs[0], axes), NamedArray(inputs[1], axes), eos=eos)
            return carry + hax.sum(losses).scalar(), None

        total, _ = jax.lax.scan(add, jnp.zeros(()), (tokens.array, mask.array))
        return total, hax.sum(mask.astype(jnp.float32)).scalar()

    return policy.with_products(evaluate)


def _example_keys(step_key: jax.Array, number: jax.Array | int, Batch: Axis) -> NamedArray:
    """Return one raw key per example: uint32 [batch, "key"]."""
    examples = number * Batch.size + jnp.arange(Batch.size)
    keys = jax.vmap(lambda example: jax.random.fold_in(step_key, example))(examples)
    return hax.named(jax.random.key_data(keys), (Batch, "key"))
