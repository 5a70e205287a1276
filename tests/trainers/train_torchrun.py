"""Train under torchrun with FSDP2 and distributed checkpoints: ``torchrun ... train_torchrun.py OUT --steps N``."""

from __future__ import annotations

import argparse
import json
import os
import signal

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from small_task import FEATURES, SAMPLES, Samples, network, progress
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

GLOBAL_BATCH = 8


def main() -> None:
    """Train, from a checkpoint with ``--resume PATH``; SIGTERM saves and ends with 0 where ``--save-on-signal``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--save-every", type=int, default=5)
    parser.add_argument("--resume")
    parser.add_argument("--save-on-signal", action="store_true")
    given = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = torch.distributed.init_device_mesh("cpu", (world,))
    model = network(dropout=0.0)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    step, stop = 0, []
    if given.save_on_signal:
        signal.signal(signal.SIGTERM, lambda *_: stop.append(True))

    def state() -> dict:
        parameters, moments = get_state_dict(model, optimizer)
        return {
            "model": parameters, "optimizer": moments, "lr_scheduler": schedule.state_dict(),
            "train_state": {"step": torch.tensor(step)},
        }  # fmt: skip

    if given.resume:
        loaded = state()
        dcp.load(loaded, checkpoint_id=given.resume)
        set_state_dict(model, optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
        schedule.load_state_dict(loaded["lr_scheduler"])
        step = int(loaded["train_state"]["step"])
    os.makedirs(given.out, exist_ok=True)
    data = Samples()
    while step < given.steps:
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(step // (SAMPLES // GLOBAL_BATCH)))
        begin = step % (SAMPLES // GLOBAL_BATCH) * GLOBAL_BATCH
        mine = order[begin : begin + GLOBAL_BATCH][rank::world]
        loss = nn.functional.cross_entropy(model(data.x[mine].view(-1, FEATURES)), data.labels[mine])
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        step += 1
        total = loss.detach().clone()
        dist.all_reduce(total)
        progress(step, (total / world).item(), mine.tolist())
        if rank == 0:
            row = {"step": step, "loss": (total / world).item(), "lr": schedule.get_last_lr()[0]}
            with open(os.path.join(given.out, "metrics.jsonl"), "a") as log:
                log.write(json.dumps(row) + "\n")
        wanted = torch.tensor(bool(stop), dtype=torch.int32)
        dist.all_reduce(wanted, op=dist.ReduceOp.MAX)
        if step % given.save_every == 0 or wanted.item():
            dcp.save(state(), checkpoint_id=os.path.join(given.out, f"step-{step}"))
        if wanted.item():
            break
    dist.barrier()  # a rank that ends while the other still communicates aborts it
    dist.destroy_process_group()


main()
