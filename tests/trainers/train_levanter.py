"""Levanter's trainer: `train_levanter.py --trainer.id run ...`, flags as of its own programs."""

import json
import os
import sys
import time
from dataclasses import dataclass, field

import haliax as hax
import jax
import jmp
import levanter.config
import numpy as np
from haliax import Axis
from levanter.data.dataset import ListAsyncDataset
from levanter.models.gpt2 import Gpt2Config
from levanter.models.lm_model import LmExample
from levanter.optim import AdamConfig
from levanter.tracker import NoopConfig
from levanter.trainer import Trainer, TrainerConfig

VOCABULARY, LENGTH, EXAMPLES = 64, 16, 4096
MODEL = Gpt2Config(max_seq_len=LENGTH, hidden_dim=16, num_layers=1, num_heads=2)


@dataclass
class Run:
    """Configuration of the run."""

    trainer: TrainerConfig = field(default_factory=lambda: TrainerConfig(tracker=NoopConfig()))
    optimizer: AdamConfig = field(
        default_factory=lambda: AdamConfig(learning_rate=1e-2, warmup=0, lr_schedule="linear")
    )
    out: str = "out"


def main(run: Run) -> None:
    """Train to the last step."""
    config = run.trainer
    config.mp = jmp.get_policy("f32")
    config.tracker = NoopConfig()
    config.initialize()
    schedule = run.optimizer.lr_scheduler(config.num_train_steps)
    vocabulary = Axis("vocab", VOCABULARY)

    def loss_of(model: object, example: LmExample, *, key: object = None) -> object:
        return model.compute_next_token_loss(example, key=key)

    def progress(info: object) -> None:
        step, loss = int(info.step), float(info.loss)
        row = {"step": step, "loss": loss, "lr": float(schedule(step))}
        with open(os.path.join(run.out, "metrics.jsonl"), "a") as log:
            log.write(json.dumps(row) + "\n")
        sys.stdout.write(f"rank=0 step={step} loss={loss.hex()} batch=\n")
        sys.stdout.flush()
        time.sleep(float(os.environ.get("STEP_SECONDS", "0")))

    with Trainer(config, run.optimizer.build(config.num_train_steps), loss_of) as trainer:
        tokens = np.random.default_rng(7).integers(0, VOCABULARY, (EXAMPLES, LENGTH), dtype=np.int32)
        examples = [LmExample.causal(hax.named(each, MODEL.max_Pos)) for each in tokens]
        data, training = jax.random.split(jax.random.PRNGKey(0))
        state = trainer.initial_state(training, model_init=lambda: MODEL.build(vocabulary, key=data))
        loader = trainer.data_loader(ListAsyncDataset(examples))
        trainer.add_hook(progress, every=1)
        trainer.train(state, loader.iter_from_step(int(state.step)))


if __name__ == "__main__":
    levanter.config.main(main)()
