"""Everything that follows from the configuration, the devices and the data, before any state exists."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jmp
import optax
from jaxtyping import PRNGKeyArray

from midstream_engine import records
from midstream_engine.config.batch_schedule import BatchSchedule
from midstream_engine.config.train import TrainLmConfig
from midstream_engine.data.imported.imported_data import tokenizer_path
from midstream_engine.data.order.batches import TrainingBatches, Validation
from midstream_engine.data.tokenize.prepare import open_training, open_validation, validation_urls
from midstream_engine.data.tokenize.tokenizer import Tokenizer, load_tokenizer
from midstream_engine.optim.adam import build_optimizer
from midstream_engine.optim.schedule import Schedule, learning_rate
from midstream_engine.processes.rendezvous import ALONE, Processes
from midstream_engine.trainer.loop.batch_division import Cut, ScheduledBatches, cut_batch
from midstream_engine.trainer.loop.train_state import (
    TrainState,
    abstract_state,
    fresh_state,
    initializer,
    with_shardings,
)
from midstream_engine.trainer.runtime.mesh import Layout, build_layout, check_divides

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Plan:
    """What the configuration and the devices decide: all that compiling needs, and no data."""

    config: TrainLmConfig
    tokenizer: Tokenizer
    layout: Layout
    policy: jmp.Policy
    schedule: Schedule
    optimizer: optax.GradientTransformationExtraArgs
    template: TrainState  # shapes
    shardings: Any  # of the template's arrays, at rest
    batch_schedule: BatchSchedule  # of the whole run
    cuts: Mapping[int, Cut]  # by the size of the batch, for the sizes that are still to come
    evaluation_cut: Cut

    @property
    def abstract(self) -> TrainState:
        """Shapes with shardings: what lowering ahead of time wants."""
        return with_shardings(self.template, self.shardings)

    @property
    def eos(self) -> int | None:
        """Where attention stops looking back; None where it passes documents' ends."""
        return self.tokenizer.eos if self.config.data.block_cross_document_attention else None

    @property
    def positions(self) -> int:
        """Tokens of an example: what the model reads, and one more where the last position's target is among them."""
        return self.config.model.seq_len + self.config.data.next_token

    @property
    def dropout(self) -> bool:
        model = self.config.model
        return any(getattr(model, name, 0.0) > 0 for name in ("embed_pdrop", "resid_pdrop", "attn_pdrop"))

    @property
    def cut(self) -> Cut:
        """Of the first batch that is trained on."""
        return next(iter(self.cuts.values()))

    def cut_at(self, step: int) -> Cut:
        """Of the batch of update ``step``."""
        return self.cuts[self.batch_schedule.size(step)]

    def tokens_at(self, step: int) -> int:
        """Tokens in the batch of update ``step``."""
        return self.batch_schedule.size(step) * self.config.model.seq_len

    @property
    def parameters(self) -> int:
        """Numbers in the model, with padding."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.template.model))

    @property
    def evaluates(self) -> bool:
        """Whether there is anything to evaluate."""
        data = self.config.data
        given = any(validation_urls(part) for part in (data.configs or {"": data}).values())
        return given and self.config.trainer.max_eval_batches != 0

    def initializer(self) -> Callable[[PRNGKeyArray], TrainState]:
        """From the run's key to the state of step 0."""
        return initializer(self.config, self.tokenizer.vocab_size, self.optimizer, self.policy)

    def fresh_state(self, processes: Processes = ALONE) -> TrainState:
        """The state of step 0."""
        return fresh_state(self.initializer(), self.layout, self.config.trainer.seed, processes)


@dataclass(frozen=True)
class Setup(Plan):
    """The plan and the data: what the loop, the saver and the witness share."""

    batches: ScheduledBatches
    validation: Validation | None

    @property
    def data_digests(self) -> list[str]:
        """Of what is read from this host's data directory: the token caches of training and of evaluation, a tokenizer
        that came along."""
        read = [self.batches.cache, *(self.validation.sets.values() if self.validation else ())]
        carried = records.tokenizer_digests(self.config.data.tokenizer)
        return list(dict.fromkeys([*(cache.digest for cache in read if cache.local), *carried]))


def make_plan(
    config: TrainLmConfig,
    devices: Sequence[Any] | None = None,
    *,
    step: int = 0,
    batch_schedule: BatchSchedule | None = None,
) -> Plan:
    """``devices``: None for all. ``step``: where training begins. ``batch_schedule``: None for the configuration's.

    Raises ConfigError for what cannot be laid out on the devices at hand, before anything is compiled.
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
    tokenizer = load_tokenizer(tokenizer_path(data.tokenizer, trainer.resolved_root()), data.eos_token)
    policy = jmp.get_policy(trainer.mp)
    rate = learning_rate(config.optimizer, trainer.num_train_steps)
    optimizer = build_optimizer(config.optimizer, rate)
    template = abstract_state(initializer(config, tokenizer.vocab_size, optimizer, policy))
    for cut in cuts.values():
        check_divides(layout, template, cut.size)
    return Plan(
        config, tokenizer, layout, policy, rate, optimizer, template, layout.at_rest(template), schedule, cuts,
        evaluation_cut,
    )  # fmt: skip


def prepare(
    config: TrainLmConfig,
    root: str,
    data_digest: str | None,
    devices: Sequence[Any] | None = None,
    *,
    step: int = 0,
    batch_schedule: BatchSchedule | None = None,
    validation: Mapping[str, Mapping[str, str]] | None = None,
) -> Setup:
    """``data_digest``: the token cache that a checkpoint names, None for a fresh start. ``validation``: what it says of
    the sets that the run is evaluated on. The rest: ``make_plan``."""
    plan = make_plan(config, devices, step=step, batch_schedule=batch_schedule)
    trainer, data = config.trainer, config.data
    cache = open_training(root, data, plan.tokenizer, seq_len=config.model.seq_len, wanted=data_digest)
    sets = open_validation(root, data, plan.tokenizer, validation)
    samples = TrainingBatches(
        cache,
        seq_len=plan.positions,
        batch_size=plan.cut.examples,
        seed=trainer.seed,
        shuffle=data.shuffle,
    )
    log.info(
        "model %.2f M parameters; mesh %s; batch %s = %d x %d; data %s: %d tokens, %d sequences",
        plan.parameters / 1e6, dict(plan.layout.mesh.shape), plan.batch_schedule, plan.cut.micro, plan.cut.size,
        cache.digest[:12], cache.tokens, samples.sequences,
    )  # fmt: skip
    fields = {field.name: getattr(plan, field.name) for field in dataclasses.fields(plan)}
    return Setup(**fields, batches=ScheduledBatches(samples, plan.batch_schedule), validation=sets)
