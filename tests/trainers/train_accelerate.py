"""Train with Accelerate: ``python train_accelerate.py OUT --steps N [options]``."""

from __future__ import annotations

import argparse
import json
import os

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, ProjectConfiguration, set_seed
from small_task import Samples, network, progress
from torch import nn


def main() -> None:
    """Train, from a checkpoint with ``--resume PATH``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--save-every", type=int, default=5)
    parser.add_argument("--resume")
    parser.add_argument("--stateful", action="store_true")
    parser.add_argument("--seedable", action="store_true")
    given = parser.parse_args()
    set_seed(4)
    accelerator = Accelerator(
        cpu=True,
        project_config=ProjectConfiguration(given.out),
        dataloader_config=DataLoaderConfiguration(
            use_stateful_dataloader=given.stateful, use_seedable_sampler=given.seedable
        ),
    )
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    loader = torch.utils.data.DataLoader(Samples(), batch_size=8, shuffle=True)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    step = 0
    if given.resume:
        accelerator.load_state(given.resume)
        step = int(given.resume.rpartition("_")[2])
    log = os.path.join(given.out, "metrics.jsonl")
    os.makedirs(given.out, exist_ok=True)
    while step < given.steps:
        for batch in loader:
            loss = nn.functional.cross_entropy(model(batch["x"]), batch["labels"])
            accelerator.backward(loss)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            step += 1
            progress(step, loss.item(), batch["index"].tolist())
            if accelerator.is_main_process:
                with open(log, "a") as file:
                    row = {"step": step, "loss": loss.item(), "lr": schedule.get_last_lr()[0]}
                    file.write(json.dumps(row) + "\n")
            if step % given.save_every == 0:
                accelerator.save_state(os.path.join(given.out, f"step_{step}"))
            if step == given.steps:
                break
    accelerator.end_training()


main()
