"""What training changes, and how it begins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jmp
import numpy as np
import optax
from haliax import NamedArray
from jaxtyping import PRNGKeyArray

from midstream_engine.config.train import TrainLmConfig
from midstream_engine.models.lm import LmModel, init_model
from midstream_engine.optim.averaging import ModelAverage, start_average
from midstream_engine.processes.rendezvous import ALONE, Processes
from midstream_engine.trainer.runtime.mesh import Layout, place


class TrainState(eqx.Module):
    """Everything that is saved as arrays. ``key`` never changes: randomness is a function of it and of the example."""

    model: LmModel
    optimizer: Any  # optax state: moments like the model, counts int32 []
    key: PRNGKeyArray
    average: ModelAverage | None = None  # where trainer.model_averaging asks for one

    @property
    def evaluated(self) -> LmModel:
        """The model to judge: the average where there is one."""
        return self.model if self.average is None else self.average.model


def initializer(
    config: TrainLmConfig, vocab_size: int, optimizer: optax.GradientTransformation, policy: jmp.Policy
) -> Callable[[PRNGKeyArray], TrainState]:
    """A function from the run's key to the state before the first update."""

    def init(key: PRNGKeyArray) -> TrainState:
        key_model, key_train = jax.random.split(key)
        model = policy.cast_to_param(init_model(config.model, vocab_size, key_model))
        average = start_average(config.trainer.model_averaging, model)
        return TrainState(model, optimizer.init(model), key_train, average)  # pyright: ignore[reportArgumentType]

    return init


def abstract_state(init: Callable[[PRNGKeyArray], TrainState]) -> TrainState:
    """The state's shapes: NamedArrays of ShapeDtypeStruct, nothing is allocated."""
    return eqx.filter_eval_shape(lambda: init(jax.random.key(0)))


def fresh_state(
    init: Callable[[PRNGKeyArray], TrainState], layout: Layout, seed: int, processes: Processes = ALONE
) -> TrainState:
    """The state before the first update, made in place: no device ever holds more than its shards.

    Bit-identical on any mesh: jax's default generator is partitionable, and see ``models.layers.normal``.
    """
    key = run_key(seed)
    begin = processes.consensus("initialisation", compile_fresh_state(init, layout))
    return begin(place(key, layout.replicated()))


def run_key(seed: int) -> np.ndarray:
    """The raw key (uint32 [2]) from which a run's state is drawn. Jax compiles two small programs for it."""
    return np.asarray(jax.random.key_data(jax.random.key(seed)))


def compile_fresh_state(init: Callable[[PRNGKeyArray], TrainState], layout: Layout) -> Any:
    """``init`` as a program that makes the state in place, from the raw key (uint32 [2])."""
    # Run once: LLVM's optimisation would take ten times as long as it saves.
    options = {"xla_backend_optimization_level": 0} if jax.default_backend() == "cpu" else None
    key = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0)))

    def begin(raw: jax.Array) -> TrainState:
        return init(jax.random.wrap_key_data(raw))

    with layout.active():
        jitted = jax.jit(begin, out_shardings=layout.at_rest(abstract_state(init)), compiler_options=options)
        return jitted.lower(jax.ShapeDtypeStruct(key.shape, key.dtype, sharding=layout.replicated())).compile()


def with_shardings(template: Any, shardings: Any) -> Any:
    """``template`` (shapes) with each array's sharding attached: what lowering ahead of time wants."""

    def attach(leaf: Any, sharding: Any) -> Any:
        if isinstance(leaf, NamedArray):
            return NamedArray(attach(leaf.array, sharding), leaf.axes)
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    return jax.tree.map(attach, template, shardings, is_leaf=lambda node: isinstance(node, NamedArray))
