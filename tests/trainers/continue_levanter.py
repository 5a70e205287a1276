"""Continue an exported run with Levanter: ``python continue_levanter.py FOLDER TOKENS.json``.

FOLDER has ``config.yaml`` and ``step-N``. Prints ``loss=HEX`` for each update.
"""

from __future__ import annotations

import dataclasses
import glob
import json
import sys
from pathlib import Path

import draccus
import equinox as eqx
import haliax as hax
import jax
import levanter
import yaml
from levanter.checkpoint import load_checkpoint
from levanter.main.train_lm import TrainLmConfig
from levanter.models.lm_model import LmExample
from levanter.tracker import NoopConfig
from levanter.trainer import Trainer


def main() -> None:
    """Load the state and train on each batch of TOKENS."""
    folder, tokens = sys.argv[1:]
    config = draccus.decode(TrainLmConfig, yaml.safe_load(Path(folder, "config.yaml").read_text()))
    given = dataclasses.replace(config.trainer, id="continued", tracker=NoopConfig(), require_accelerator=False)
    given.initialize()
    vocabulary = hax.Axis("vocab", config.data.vocab_size)
    positions = config.model.max_Pos

    def loss_of(model: object, example: LmExample, *, key: object = None) -> object:
        return model.compute_next_token_loss(example, key=key, logsumexp_weight=config.z_loss_weight)

    optimizer = config.optimizer.build(given.num_train_steps)
    with Trainer(given, optimizer, loss_of, add_default_hooks=False) as trainer:
        key = jax.random.PRNGKey(5)
        state = trainer.initial_state(key, model_init=lambda: config.model.build(vocabulary, key=key))
        (path,) = glob.glob(f"{folder}/step-*")
        loaded = load_checkpoint(
            state.saveable_state, path, axis_mapping=trainer.parameter_axis_mapping, mesh=trainer.device_mesh
        )
        state = eqx.combine(loaded, state)
        for batch in json.loads(Path(tokens).read_text()):
            named = hax.named(jax.numpy.asarray(batch, dtype=jax.numpy.int32), (trainer.TrainBatch, positions))
            weights = jax.vmap(lambda row: LmExample.causal(hax.named(row, (positions,))).loss_weight.array)(
                named.array
            )
            example = LmExample(
                tokens=named, loss_weight=hax.named(weights, (trainer.TrainBatch, positions)),
                attn_mask=levanter.layers.attention.AttentionMask.causal(),
            )  # fmt: skip
            info = trainer.train_step(state, example)
            state = info.state
            sys.stdout.write(f"loss={float(info.loss).hex()}\n")


main()
