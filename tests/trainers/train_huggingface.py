"""Train with the Trainer of transformers: ``python train_huggingface.py OUT --steps N [options]``."""

from __future__ import annotations

import argparse
import os
import sys

os.environ.setdefault("ACCELERATE_USE_CPU", "true")
os.environ.setdefault("TENSORBOARD_LOGGING_DIR", os.path.join(sys.argv[1], "runs"))

import torch
from small_task import Samples, network, progress
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainerCallback, TrainingArguments


class Classifier(PreTrainedModel):
    """The network as a model of transformers."""

    config_class = PretrainedConfig

    def __init__(self, config: PretrainedConfig) -> None:
        super().__init__(config)
        self.network = network()
        self.batch: list[int] = []
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        pass

    def forward(self, x: torch.Tensor, labels: torch.Tensor, index: torch.Tensor) -> dict:
        self.batch = index.tolist()
        logits = self.network(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Stream(torch.utils.data.IterableDataset):
    """The samples as a stream: it has no length."""

    def __iter__(self):
        samples = Samples()
        return (samples[index] for index in range(len(samples)))


class Printing(TrainerCallback):
    """Prints each logged step."""

    def on_log(self, args, state, control, logs=None, model=None, **_) -> None:
        if logs and "loss" in logs:
            progress(state.global_step, logs["loss"], model.batch)


def main() -> None:
    """Train, from the newest checkpoint with ``--resume`` (or one of that path)."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--save-every", type=int, default=5)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--accumulation", type=int, default=1)
    parser.add_argument("--resume", nargs="?", const=True)
    parser.add_argument("--jit-checkpoint", action="store_true")
    parser.add_argument("--report-to", default="tensorboard")
    parser.add_argument("--stream", action="store_true")
    given = parser.parse_args()
    more = {"enable_jit_checkpoint": True} if given.jit_checkpoint else {}
    arguments = TrainingArguments(
        given.out, max_steps=given.steps, save_steps=given.save_every, per_device_train_batch_size=given.batch,
        gradient_accumulation_steps=given.accumulation,
        logging_steps=1, learning_rate=1e-2, warmup_steps=2, report_to=given.report_to, use_cpu=True, seed=3,
        disable_tqdm=True, dataloader_num_workers=0,
        remove_unused_columns=False, **more,
    )  # fmt: skip
    samples = Stream() if given.stream else Samples()
    trainer = Trainer(Classifier(PretrainedConfig()), arguments, train_dataset=samples, callbacks=[Printing()])
    trainer.train(resume_from_checkpoint=given.resume)


main()
