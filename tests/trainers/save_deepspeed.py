"""Train with DeepSpeed under torchrun: ``torchrun ... save_deepspeed.py OUT --steps N --stage 1``."""

from __future__ import annotations

import argparse
import json
import os
import sys

os.environ |= {"DS_ACCELERATOR": "cpu", "DS_BUILD_OPS": "0", "LOCAL_SIZE": "1"}

import deepspeed
import torch
import torch.distributed as dist
from small_task import SAMPLES, Samples, network, progress
from torch import nn

sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # gloo will do; it would be compiled first
GLOBAL_BATCH = 8


def main() -> None:
    """Train, from the newest checkpoint in a directory with ``--resume PATH``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--save-every", type=int, default=5)
    parser.add_argument("--stage", type=int, default=1)
    parser.add_argument("--resume")
    parser.add_argument("--universal", action="store_true", help="what --resume names was written by ds_to_universal")
    given = parser.parse_args()
    deepspeed.init_distributed("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model = network(dropout=0.0)
    engine, _, _, _ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), 1e-2),
        lr_scheduler=lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
        config={
            "train_batch_size": GLOBAL_BATCH,
            "train_micro_batch_size_per_gpu": GLOBAL_BATCH // world,
            "zero_optimization": {"stage": given.stage},
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "steps_per_print": 1_000_000_000,
            "checkpoint": {"load_universal": given.universal},
        },
    )
    if given.resume:
        path, _ = engine.load_checkpoint(given.resume)
        assert path is not None, f"nothing was loaded from {given.resume}"
    step, data = engine.global_steps, Samples()
    while step < given.steps:
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(step // (SAMPLES // GLOBAL_BATCH)))
        begin = step % (SAMPLES // GLOBAL_BATCH) * GLOBAL_BATCH
        mine = order[begin : begin + GLOBAL_BATCH][rank::world]
        loss = nn.functional.cross_entropy(engine(data.x[mine]), data.labels[mine])
        engine.backward(loss)
        engine.step()
        step += 1
        total = loss.detach().clone()
        dist.all_reduce(total)
        progress(step, (total / world).item(), mine.tolist())
        if rank == 0:
            row = {"step": step, "loss": (total / world).item(), "lr": engine.get_lr()[0]}
            with open(os.path.join(given.out, "metrics.jsonl"), "a") as log:
                log.write(json.dumps(row) + "\n")
        if step % given.save_every == 0:
            engine.save_checkpoint(given.out)
    dist.destroy_process_group()


main()
