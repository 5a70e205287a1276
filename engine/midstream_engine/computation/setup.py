"""Setup of a run from configuration, devices and data, before any state exists."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax
from jaxtyping import PRNGKeyArray

from midstream_core import records
from midstream_engine.array_types import Device, PyTree
from midstream_engine.computation.batch_division import Cut, ScheduledBatches, cut_batch
from midstream_engine.computation.rematerialisation import by_memory, own_device
from midstream_engine.computation.train_state import (
    StepPolicy,
    TrainState,
    abstract_state,
    fresh_state,
    initializer,
    policy_of,
    with_shardings,
)
from midstream_engine.config.batch_schedule import BatchSchedule
from midstream_engine.config.model import REMAT_BY_MEMORY
from midstream_engine.config.train import TrainLmConfig
from midstream_engine.data.batches import TrainingBatches, Validation
from midstream_engine.data.imported_files import tokenizer_path
from midstream_engine.data.prepared_data import open_training, open_validation, validation_urls
from midstream_engine.data.tokenize.tokenizer import Tokenizer, load_tokenizer
from midstream_engine.optim.optimizer import build_optimizer
from midstream_engine.optim.schedule import Schedule, learning_rate
from midstream_engine.processes.rendezvous import ALONE, Processes
from midstream_engine.runtime.mesh import Layout, build_layout, check_fits

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CompilePlan:
    """Consequences of the configuration and the devices: all that compiling needs.

    The data is not needed.
    """

    config: TrainLmConfig
    tokenizer: Tokenizer
    layout: Layout
    policy: StepPolicy
    schedule: Schedule
    optimizer: optax.GradientTransformationExtraArgs
    template: TrainState  # shapes
    shardings: PyTree  # of the template's arrays, at rest
    batch_schedule: BatchSchedule  # of the run from step 0
    cuts: Mapping[int, Cut]  # by batch size, for the sizes from the present step on
    evaluation_cut: Cut

    @property
    def abstract(self) -> TrainState:
        """Shapes with shardings, for lowering ahead of time."""
        return with_shardings(self.template, self.shardings)

    @property
    def eos(self) -> int | None:
        """Token at which attention stops looking back.

        None if it crosses the ends of documents.
        """
        return self.tokenizer.eos if self.config.data.block_cross_document_attention else None

    @property
    def positions(self) -> int:
        """Tokens of an example: see ``TrainLmConfig.positions``."""
        return self.config.positions

    @property
    def dropout(self) -> bool:
        """Whether the model has any dropout."""
        model = self.config.model
        return any(getattr(model, name, 0.0) > 0 for name in ("embed_pdrop", "resid_pdrop", "attn_pdrop"))

    @property
    def cut(self) -> Cut:
        """The division of the first batch that is trained on."""
        return next(iter(self.cuts.values()))

    def cut_at(self, step: int) -> Cut:
        """Return the division of the batch of update ``step``."""
        return self.cuts[self.batch_schedule.size(step)]

    def tokens_at(self, step: int) -> int:
        """Return the number of tokens in the batch of update ``step``."""
        return self.batch_schedule.size(step) * self.config.model.seq_len

    @property
    def parameters(self) -> int:
        """Number of parameters, with padding."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.template.model))

    @property
    def state_bytes(self) -> int:
        """Bytes of the arrays of the complete state, on all devices together."""
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(self.template))

    @property
    def evaluates(self) -> bool:
        """Whether validation text is configured and evaluation is not off."""
        data = self.config.data
        given = any(validation_urls(dataset) for dataset in (data.configs or {"": data}).values())
        return given and self.config.trainer.max_eval_batches != 0

    def initializer(self) -> Callable[[PRNGKeyArray], TrainState]:
        """Return the function from the run's key to the state of step 0."""
        return initializer(self.config, self.tokenizer.vocab_size, self.optimizer, self.policy)

    def fresh_state(self, processes: Processes = ALONE) -> TrainState:
        """Make the state of step 0 on the devices."""
        return fresh_state(self.initializer(), self.layout, self.config.trainer.seed, processes)


@dataclass(frozen=True)
class Setup(CompilePlan):
    """The plan and the data, shared by the loop, the saver and the reference losses."""

    batches: ScheduledBatches
    validation: Validation | None

    @property
    def data_digests(self) -> list[str]:
        """Digests of the token caches and tokenizer read from this host's data directory."""
        read = [self.batches.cache, *(self.validation.sets.values() if self.validation else ())]
        stored = records.tokenizer_digests(self.config.data.given_tokenizer)
        return list(dict.fromkeys([*(cache.digest for cache in read if cache.local), *stored]))


def make_plan(
    config: TrainLmConfig,
    devices: Sequence[Device] | None = None,
    *,
    step: int = 0,
    batch_schedule: BatchSchedule | None = None,
    tokenizer_id: str = "",
) -> CompilePlan:
    """Plan the run on ``devices``, before anything is compiled.

    Args:
        config: The configuration.
        devices: None for all.
        step: The first step to train.
        batch_schedule: None for the configuration's.
        tokenizer_id: Of the run's tokenizer in its checkpoint; empty for a fresh start.

    Raises:
        ConfigError: The configuration cannot be laid out on the devices.
    """
    trainer, data = config.trainer, config.data
    schedule = trainer.batch_schedule() if batch_schedule is None else batch_schedule
    layout = build_layout(trainer, devices)
    cuts = {
        size: cut_batch(layout, size, trainer.per_device_parallelism)
        for size in schedule.sizes(step, max(step + 1, trainer.num_train_steps))
    }
    evaluated = max(cuts)
    per_device_eval = trainer.per_device_eval_parallelism
    evaluation_cut = cut_batch(
        layout,
        evaluated,
        cuts[evaluated].size // layout.batch_shards if per_device_eval == -1 else per_device_eval,
        "trainer.per_device_eval_parallelism",
    )
    path = tokenizer_path(data.given_tokenizer, trainer.resolved_root())
    tokenizer = load_tokenizer(path, data.eos_token, tokenizer_id)
    policy = policy_of(config)
    rate = learning_rate(config.optimizer, trainer.num_train_steps)
    optimizer = build_optimizer(config.optimizer, rate)
    template = abstract_state(initializer(config, tokenizer.vocab_size, optimizer, policy))
    for cut in cuts.values():
        check_fits(layout, template, cut.size)
    if config.model.gradient_checkpointing == REMAT_BY_MEMORY:
        config = _with_remat(config, layout, template, cuts[evaluated])
        template = abstract_state(initializer(config, tokenizer.vocab_size, optimizer, policy))
    return CompilePlan(
        config, tokenizer, layout, policy, rate, optimizer, template, layout.at_rest(template), schedule, cuts,
        evaluation_cut,
    )  # fmt: skip


def _with_remat(config: TrainLmConfig, layout: Layout, template: TrainState, cut: Cut) -> TrainLmConfig:
    """Return the configuration with what each layer stores, by the devices' memory."""
    devices = layout.mesh.size
    numbers = sum(leaf.size for leaf in jax.tree.leaves(template.model))
    chosen = by_memory(
        config.model,
        own_device(layout.mesh.devices.ravel().tolist()),
        state=sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(template)) / devices,
        gradients=4 * numbers * (1 if cut.micro == 1 else 2) / devices,
        tokens=cut.size // layout.batch_shards * config.model.seq_len,
        width=jnp.dtype(config.trainer.precision().compute).itemsize,
    )
    log.info("model.gradient_checkpointing: auto is %s here", chosen if isinstance(chosen, str) else "true")
    return dataclasses.replace(config, model=dataclasses.replace(config.model, gradient_checkpointing=chosen))


def prepare(
    config: TrainLmConfig,
    root: str,
    data_digest: str | None,
    devices: Sequence[Device] | None = None,
    *,
    step: int = 0,
    batch_schedule: BatchSchedule | None = None,
    validation: Mapping[str, Mapping[str, str]] | None = None,
    tokenizer_id: str = "",
) -> Setup:
    """Plan the run, and open its data.

    Args:
        config: The configuration.
        root: Root directory of the host.
        data_digest: Of the token cache that a checkpoint names; None for a fresh start.
        devices: See :func:`make_plan`.
        step: See :func:`make_plan`.
        batch_schedule: See :func:`make_plan`.
        validation: The checkpoint's record of the validation sets; None for a fresh start.
        tokenizer_id: See :func:`make_plan`.

    Raises:
        ConfigError: The configuration cannot be laid out on the devices.
        DataError: The data cannot be read, or is not that of ``data_digest``.
    """
    plan = make_plan(config, devices, step=step, batch_schedule=batch_schedule, tokenizer_id=tokenizer_id)
    trainer, data = config.trainer, config.data
    cache = open_training(root, data, plan.tokenizer, seq_len=plan.positions, expected_digest=data_digest)
    sets = open_validation(root, data, plan.tokenizer, validation)
    samples = TrainingBatches(
        cache,
        seq_len=plan.positions,
        batch_size=plan.cut.examples,
        seed=trainer.seed,
        shuffle=data.shuffle,
        ignored=data.ignore_token_id,
    )
    log.info(
        "model %.2f M parameters; mesh %s; batch %s = %d x %d; data %s: %d tokens, %d sequences",
        plan.parameters / 1e6, dict(plan.layout.mesh.shape), plan.batch_schedule, plan.cut.micro, plan.cut.size,
        cache.digest[:12], cache.tokens, samples.sequences,
    )  # fmt: skip
    fields = {field.name: getattr(plan, field.name) for field in dataclasses.fields(plan)}
    return Setup(**fields, batches=ScheduledBatches(samples, plan.batch_schedule), validation=sets)
