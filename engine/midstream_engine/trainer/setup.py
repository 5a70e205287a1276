"""Everything that follows from the configuration, the devices and the data, before any state exists."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jmp
import optax

from midstream_engine.config.train import TrainLmConfig
from midstream_engine.data.batches import TrainingBatches
from midstream_engine.data.cache import TokenCache
from midstream_engine.data.prepare import open_cache
from midstream_engine.data.tokenizer import Tokenizer, load_tokenizer
from midstream_engine.optim.adam import build_optimizer
from midstream_engine.optim.schedule import Schedule, learning_rate
from midstream_engine.trainer.batching import Cut, cut_batch
from midstream_engine.trainer.mesh import Layout, build_layout, check_divides
from midstream_engine.trainer.state import TrainState, abstract_state, fresh_state, initializer, with_shardings

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Setup:
    """The parts that the loop, the saver and the witness share."""

    config: TrainLmConfig
    tokenizer: Tokenizer
    batches: TrainingBatches
    validation: TokenCache | None
    layout: Layout
    policy: jmp.Policy
    schedule: Schedule
    optimizer: optax.GradientTransformation
    template: TrainState  # shapes
    shardings: Any  # of the template's arrays, at rest
    cut: Cut
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
    def dropout(self) -> bool:
        model = self.config.model
        return any(getattr(model, name, 0.0) > 0 for name in ("embed_pdrop", "resid_pdrop", "attn_pdrop"))

    @property
    def tokens_per_step(self) -> int:
        return self.cut.examples * self.config.model.seq_len

    def fresh_state(self) -> TrainState:
        """The state of step 0."""
        init = initializer(self.config, self.tokenizer.vocab_size, self.optimizer, self.policy)
        return fresh_state(init, self.layout, self.config.trainer.seed)


def prepare(config: TrainLmConfig, root: str, data_digest: str | None, devices: Sequence[Any] | None = None) -> Setup:
    """``data_digest``: the token cache that a checkpoint names, None for a fresh start. ``devices``: None for all.

    Raises ConfigError for what cannot be laid out on the devices at hand, before anything is compiled.
    """
    trainer, data = config.trainer, config.data
    layout = build_layout(trainer, devices)
    cut = cut_batch(layout, trainer.train_batch_size, trainer.per_device_parallelism)
    per_device_eval = trainer.per_device_eval_parallelism
    evaluation_cut = cut_batch(
        layout,
        trainer.train_batch_size,
        cut.size // layout.batch_shards if per_device_eval == -1 else per_device_eval,
        "trainer.per_device_eval_parallelism",
    )
    tokenizer = load_tokenizer(data.tokenizer, data.eos_token)
    policy = jmp.get_policy(trainer.mp)
    schedule = learning_rate(config.optimizer, trainer.num_train_steps)
    optimizer = build_optimizer(config.optimizer, schedule)
    template = abstract_state(initializer(config, tokenizer.vocab_size, optimizer, policy))
    check_divides(layout, template, cut.size)

    cache = open_cache(root, data.train_urls, data, tokenizer, wanted=data_digest)
    validation = open_cache(root, data.validation_urls, data, tokenizer) if data.validation_urls else None
    batches = TrainingBatches(
        cache,
        seq_len=config.model.seq_len,
        batch_size=trainer.train_batch_size,
        seed=trainer.seed,
        shuffle=data.shuffle,
    )
    parameters = sum(leaf.size for leaf in jax.tree.leaves(template.model))
    log.info(
        "model %.2f M parameters; mesh %s; batch %d = %d x %d; data %s: %d tokens, %d sequences",
        parameters / 1e6, dict(layout.mesh.shape), cut.examples, cut.micro, cut.size,
        cache.digest[:12], cache.tokens, batches.sequences,
    )  # fmt: skip
    return Setup(
        config, tokenizer, batches, validation, layout, policy, schedule, optimizer, template,
        layout.at_rest(template), cut, evaluation_cut,
    )  # fmt: skip
