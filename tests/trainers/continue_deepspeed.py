"""Train transformers' model with DeepSpeed from an export of `midstream`, on given batches.

``torchrun ... continue_deepspeed.py EXPORT BATCHES.npy RATES.json [--universal]``: RATES has the learning rate of each
update, as the script's own schedule. Prints each step's loss exactly.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

os.environ |= {"DS_ACCELERATOR": "cpu", "DS_BUILD_OPS": "0", "LOCAL_SIZE": "1"}

import deepspeed
import numpy as np
import torch
import torch.distributed as dist
from small_task import progress
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, AutoModelForCausalLM

sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # gloo will do; it would be compiled first


def main() -> None:
    """Train to the last batch."""
    parser = argparse.ArgumentParser()
    parser.add_argument("export", type=Path)
    parser.add_argument("batches")
    parser.add_argument("rates", type=Path)
    parser.add_argument("--universal", action="store_true")
    given = parser.parse_args()
    deepspeed.init_distributed("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)  # every number has to come from the checkpoint
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(given.export), dtype=torch.float32)
    named = dict(model.named_parameters())
    groups = json.loads((given.export / "parameter_groups.json").read_text())
    assert sorted(name for group in groups for name in group["params"]) == sorted(named)
    groups = [{**group, "params": [named[name] for name in group["params"]]} for group in groups]
    config = json.loads((given.export / "ds_config.json").read_text())
    config |= {"train_micro_batch_size_per_gpu": config["train_batch_size"] // world, "steps_per_print": 10**9}
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(groups),
        config={**config, "checkpoint": {"load_universal": given.universal}},
    )
    path, _ = engine.load_checkpoint(str(given.export))
    assert path is not None, f"nothing was loaded from {given.export}"
    batches, rates = np.load(given.batches), json.loads(given.rates.read_text())
    while engine.global_steps < len(batches):
        step = engine.global_steps
        for group in engine.optimizer.param_groups:
            group["lr"] = rates[step]
        tokens = torch.from_numpy(batches[step].astype(np.int64)).chunk(world)[rank]
        logits = engine(input_ids=tokens, use_cache=False).logits[:, :-1]
        loss = cross_entropy(logits.reshape(-1, logits.shape[-1]), tokens[:, 1:].reshape(-1))
        engine.backward(loss)
        engine.step()
        total = loss.detach() / world
        dist.all_reduce(total)
        if rank == 0:
            progress(step + 1, total.item(), [0])
    dist.destroy_process_group()


main()
