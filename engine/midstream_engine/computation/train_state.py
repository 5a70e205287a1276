"""The training state: the arrays that training changes, and their first values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import ParamSpec, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import jmp
import numpy as np
import optax
from haliax import NamedArray
from jaxtyping import PRNGKeyArray

from midstream_engine.array_types import Leaf, PyTree
from midstream_engine.config.train import TrainLmConfig
from midstream_engine.models.initialization import init_model
from midstream_engine.models.lm import LmModel
from midstream_engine.models.random_keys import key_of, new_key, partitionable
from midstream_engine.optim.averaging import ModelAverage, start_average
from midstream_engine.processes.rendezvous import ALONE, Processes
from midstream_engine.runtime.mesh import Layout, place

P = ParamSpec("P")
R = TypeVar("R")


class TrainState(eqx.Module):
    """All arrays of a checkpoint.

    ``key`` never changes: randomness is a function of it and of the example.
    """

    model: LmModel
    optimizer: PyTree  # optax state: moments like the model, counts int32 []
    key: PRNGKeyArray
    average: ModelAverage | None = None  # with trainer.model_averaging

    @property
    def evaluated(self) -> LmModel:
        """The model to evaluate: the average if there is one."""
        return self.model if self.average is None else self.average.model


@dataclass(frozen=True)
class StepPolicy(jmp.Policy):
    """Precisions of a step."""

    wide_gradients: bool = False  # gradients are summed in float32, over devices too, where the computation has less
    matmul_precision: str | None = None  # jax's name; None: the accelerator's default

    def with_products(self, function: Callable[P, R]) -> Callable[P, R]:
        """Return ``function``, to be traced, with matrix products in the run's precision.

        jax's own settings of products and of random numbers have no effect in it, and so their variables have none.
        """

        @wraps(function)
        def traced(*arguments: P.args, **named: P.kwargs) -> R:
            with jax.default_matmul_precision(self.matmul_precision), partitionable():
                return function(*arguments, **named)

        return traced


def policy_of(config: TrainLmConfig) -> StepPolicy:
    """Return the run's precisions."""
    precision = config.trainer.precision()
    dtypes = (jnp.dtype(name) for name in (precision.parameters, precision.compute, precision.output))
    return StepPolicy(
        *dtypes,
        wide_gradients=config.trainer.gradient_reduce_dtype is not None,
        matmul_precision=config.trainer.precision_of_products(),
    )


def initializer(
    config: TrainLmConfig, vocab_size: int, optimizer: optax.GradientTransformation, policy: jmp.Policy
) -> Callable[[PRNGKeyArray], TrainState]:
    """Return the function from the run's key to the state before the first update."""

    def init(key: PRNGKeyArray) -> TrainState:
        with partitionable():
            key_model, key_train = jax.random.split(key)
            model = policy.cast_to_param(init_model(config.model, vocab_size, key_model))
        average = start_average(config.trainer.model_averaging, model)
        return TrainState(model, optimizer.init(model), key_train, average)  # pyright: ignore[reportArgumentType]

    return init


def abstract_state(init: Callable[[PRNGKeyArray], TrainState]) -> TrainState:
    """Return the state as NamedArrays of ShapeDtypeStruct, without allocation."""
    return eqx.filter_eval_shape(lambda: init(new_key(0)))


def fresh_state(
    init: Callable[[PRNGKeyArray], TrainState], layout: Layout, seed: int, processes: Processes = ALONE
) -> TrainState:
    """Make the state before the first update in place.

    No device ever has more than its shards.

    Bit-identical on any mesh: see ``models.random_keys`` and ``models.layers.normal``.
    """
    key = run_key(seed)
    begin = processes.consensus("initialisation", compile_fresh_state(init, layout))
    return begin(place(key, layout.replicated()))


def run_key(seed: int) -> np.ndarray:
    """Return the raw key (uint32 [2]) from which a run's state is drawn.

    Jax compiles two small programs for it.
    """
    return np.asarray(jax.random.key_data(new_key(seed)))


def compile_fresh_state(init: Callable[[PRNGKeyArray], TrainState], layout: Layout) -> PyTree:
    """Compile ``init`` to a program that makes the state from the raw key, in place.

    The key is uint32 [2].
    """
    # The program runs once: LLVM's optimisation would take ten times as long as it saves.
    options = {"xla_backend_optimization_level": 0} if layout.platform == "cpu" else None
    key = jax.eval_shape(lambda: jax.random.key_data(new_key(0)))

    def begin(raw: jax.Array) -> TrainState:
        return init(key_of(raw))

    with layout.active():
        jitted = jax.jit(begin, out_shardings=layout.at_rest(abstract_state(init)), compiler_options=options)
        return jitted.lower(jax.ShapeDtypeStruct(key.shape, key.dtype, sharding=layout.replicated())).compile()


def with_shardings(template: PyTree, shardings: PyTree) -> PyTree:
    """Attach each array's sharding to ``template`` (shapes), to lower ahead of time."""

    def attach(leaf: Leaf, sharding: Leaf) -> PyTree:
        if isinstance(leaf, NamedArray):
            return NamedArray(attach(leaf.array, sharding), leaf.axes)
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    return jax.tree.map(attach, template, shardings, is_leaf=lambda node: isinstance(node, NamedArray))
