"""Train a causal model with the Trainer of transformers on given batches, in their order.

``python train_causal.py OUT BATCHES.npy [--model DIR] [--resume CHECKPOINT]``
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

os.environ.setdefault("ACCELERATE_USE_CPU", "true")

import numpy as np
import torch
from small_task import progress
from torch.utils.data import SequentialSampler
from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments


class Rows(torch.utils.data.Dataset):
    """All rows of batches int [steps, batch, position]."""

    def __init__(self, batches: np.ndarray) -> None:
        self.rows = torch.from_numpy(batches.reshape(-1, batches.shape[-1]).astype(np.int64))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict:
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


class Printing(TrainerCallback):
    """Prints each logged step."""

    def on_log(self, args, state, control, logs=None, **_) -> None:
        if logs and "loss" in logs:
            progress(state.global_step, logs["loss"], [0])


class InOrder(Trainer):
    """Trainer without shuffling; the parameters that decay are those of the export, if it names them."""

    decaying: Path

    def _get_train_sampler(self, *_: object) -> SequentialSampler:
        return SequentialSampler(self.train_dataset)

    def get_decay_parameter_names(self, model: torch.nn.Module) -> list[str]:
        if self.decaying.exists():
            return json.loads(self.decaying.read_text())
        return super().get_decay_parameter_names(model)


def main() -> None:
    """Train with the arguments in ``training_arguments.json`` beside the checkpoint, or in OUT."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("batches")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--resume", type=Path)
    parser.add_argument("--ours", action="store_true", help="decay the parameters that decay_parameters.json names")
    given = parser.parse_args()
    place = given.resume.parent if given.resume else given.out
    named = json.loads((place / "training_arguments.json").read_text())
    arguments = TrainingArguments(
        str(given.out), **{"logging_steps": 1, **named}, report_to=[], use_cpu=True, disable_tqdm=True
    )
    if given.model:
        model = AutoModelForCausalLM.from_pretrained(given.model)
    else:  # every number has to come from what Trainer reads of the checkpoint
        torch.manual_seed(1)
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(given.resume))
    model.loss_type = "ForCausalLM"  # GPT-2's is None, and Trainer counts a target too many in each row
    trainer = InOrder(model, arguments, train_dataset=Rows(np.load(given.batches)), callbacks=[Printing()])
    trainer.decaying = place / ("decay_parameters.json" if given.ours else "none")
    trainer.train(resume_from_checkpoint=str(given.resume) if given.resume else None)


main()
