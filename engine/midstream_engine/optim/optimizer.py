"""The run's optimizer: the parts of its kind in SkipStep, then the learning rate.

The updates of the parts are multiplied by the negative learning rate.
"""

from __future__ import annotations

import jax
import optax

from midstream_engine.array_types import OptimizerState, PyTree
from midstream_engine.config.adam_variants import AdoptConfig, CautiousConfig
from midstream_engine.config.lion import LionConfig
from midstream_engine.config.muon import MuonConfig
from midstream_engine.config.optimizer import AdamConfig, OptimizerConfig
from midstream_engine.optim.adam import ADAM, adam
from midstream_engine.optim.adam_variants import ADOPT, CAUTIOUS, adopt, cautious
from midstream_engine.optim.decay import decay
from midstream_engine.optim.muon import muon_parts
from midstream_engine.optim.schedule import Schedule
from midstream_engine.optim.skip_step import skip_step
from midstream_engine.optim.stored_dtypes import computed_in_float32, stored_as
from midstream_engine.optim.update_clipping import CLIP, clip_by_recent_norms, clip_by_rms

LION = "lion"  # the name of the part that holds the momentum
_COUNTED = (ADAM, LION, ADOPT, CAUTIOUS)  # parts that count updates
SCHEDULE = "schedule"  # the name of the chain's last part, which holds the count


def build_optimizer(config: OptimizerConfig, schedule: Schedule) -> optax.GradientTransformationExtraArgs:
    """Build the optimizer of ``config``.

    Its parts come first, then the multiplication by the negative learning rate.

    The learning rate depends on the count in the optimizer's own state. ``update`` needs ``loss`` and
    ``gradient_norm``, float32 []. The parts are named, so that the names of saved arrays do not depend on clipping or
    decay. An update that SkipStep skips counts in the schedule: it is a step of the run. Updates are float32.
    """
    inner = optax.named_chain(*_parts(config))
    skip = config.skip_step()
    return computed_in_float32(_scaled(inner if skip is None else skip_step(inner, skip), schedule))


def _parts(config: OptimizerConfig) -> list[tuple[str, optax.GradientTransformation]]:
    """Return the named parts of the optimizer, in order.

    The parts are clip by the global norm, the kind's own, decoupled decay, and limits on the update.
    """
    match config:
        case AdamConfig():
            own, clip = (ADAM, adam(config)), config.max_grad_norm
        case LionConfig():
            lion = optax.scale_by_lion(b1=config.beta1, b2=config.beta2)
            own, clip = (LION, stored_as(lion, mu="float32")), config.max_grad_norm
        case AdoptConfig():
            own, clip = (ADOPT, adopt(config)), config.max_grad_norm
        case CautiousConfig():
            own, clip = (CAUTIOUS, cautious(config)), config.max_grad_norm
        case MuonConfig():
            return muon_parts(config)
        case _:
            raise TypeError(f"no optimizer for {type(config).__name__}")
    parts = [("clip", optax.clip_by_global_norm(clip)), own] if clip else [own]
    if config.weight_decay > 0:
        parts.append(("decay", decay(config)))
    if isinstance(config, AdamConfig) and config.update_rms_clipping is not None:
        parts.append(("clip_update_rms", clip_by_rms(config.update_rms_clipping)))
    if isinstance(config, AdamConfig) and config.clip_update_norm is not None:
        parts.append((CLIP, clip_by_recent_norms(config.clip_update_norm)))
    return parts


def _scaled(inner: optax.GradientTransformationExtraArgs, schedule: Schedule) -> optax.GradientTransformationExtraArgs:
    """Multiply ``inner`` by the negative learning rate.

    The state of ``inner`` is a dict, to which the count of the rate is added.
    """
    scale = optax.scale_by_learning_rate(schedule)

    def init(params: PyTree) -> dict[str, PyTree]:
        started: PyTree = inner.init(params)
        return {**started, SCHEDULE: scale.init(params)}

    def update(
        updates: PyTree, state: OptimizerState, params: PyTree = None, **extra: object
    ) -> tuple[PyTree, dict[str, PyTree]]:
        before = {name: value for name, value in state.items() if name != SCHEDULE}
        after: PyTree
        rate = schedule(state[SCHEDULE].count)
        updates, after = inner.update(updates, before, params, learning_rate=rate, **extra)
        updates, count = scale.update(updates, state[SCHEDULE], params)
        return updates, {**after, SCHEDULE: count}

    return optax.GradientTransformationExtraArgs(init, update)


def schedule_count(optimizer_state: OptimizerState) -> jax.Array:
    """Return the schedule's number of updates, which gives the next rate, int32 []."""
    return optimizer_state[SCHEDULE].count


def update_count(optimizer_state: OptimizerState) -> jax.Array:
    """Return the number of updates in the moments, int32 [].

    Updates that SkipStep skipped are not counted.
    """
    return next(optimizer_state[name].count for name in _COUNTED if name in optimizer_state)
