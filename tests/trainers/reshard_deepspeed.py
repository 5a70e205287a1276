"""Train a small model with DeepSpeed, of which checkpoints are divided over other numbers of processes.

``torchrun ... reshard_deepspeed.py OUT --stage 1 --precision bf16``: two groups of parameters, one without decay,
a tied and a frozen parameter, a buffer, and uneven sizes. Prints each step's loss exactly,
with the rates of the groups before the batch.
"""

from __future__ import annotations

import argparse
import os
import sys

os.environ |= {"DS_ACCELERATOR": "cpu", "DS_BUILD_OPS": "0", "LOCAL_SIZE": "1"}

import deepspeed
import torch
import torch.distributed as dist
from small_task import progress
from torch import nn

sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # gloo will do; it would be compiled first
deepspeed.accelerator.get_accelerator().is_fp16_supported = lambda: True  # torch's operators, slow as they are
GLOBAL_BATCH, WORDS, WIDTH = 24, 13, 7
FLAGS = {"bf16": {"bf16": {"enabled": True}}, "fp16": {"fp16": {"enabled": True, "initial_scale_power": 8}}, "fp32": {}}


class Model(nn.Module):
    """Predicts a word from two others."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.words = nn.Embedding(WORDS, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.mixed = nn.Linear(2 * WIDTH, 9)
        self.fixed = nn.Linear(9, 5)  # frozen
        self.out = nn.Linear(5, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.words.weight
        self.register_buffer("scale", torch.tensor([1.5]))
        for parameter in self.fixed.parameters():
            parameter.requires_grad = False

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return the logits [batch, word] of ``words`` [batch, 2]."""
        pair = self.norm(self.words(words)).flatten(1)
        return self.head(self.out(torch.tanh(self.fixed(torch.relu(self.mixed(pair)))))) * self.scale


def groups_of(model: nn.Module, count: int) -> list:
    """Parameters with and without weight decay; all of them, in one group, where ``count`` is 1."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad or count == 1]
    if count == 1:
        return trained
    return [
        {"params": [parameter for parameter in trained if parameter.ndim > 1], "weight_decay": 0.1, "lr": 2e-2},
        {"params": [parameter for parameter in trained if parameter.ndim == 1], "weight_decay": 0.0},
    ]


def config_of(given: argparse.Namespace) -> dict:
    """DeepSpeed's configuration."""
    zero = {"stage": given.stage, **({"sub_group_size": given.sub_group_size} if given.sub_group_size else {})}
    if given.round_robin:
        zero |= {"round_robin_gradients": True}
    return {
        "train_batch_size": GLOBAL_BATCH,
        "gradient_clipping": 1.0,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 1_000_000_000,
        "checkpoint": {"load_universal": given.universal},
        **FLAGS[given.precision],
        **({"data_types": {"grad_accum_dtype": given.accumulate}} if given.accumulate else {}),
    }


def main() -> None:
    """Train, from the newest checkpoint in a directory with ``--resume PATH``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument("--stage", type=int, default=1)
    parser.add_argument("--precision", default="fp32", choices=FLAGS)
    parser.add_argument("--accumulate", help="type of accumulated gradients")
    parser.add_argument("--groups", type=int, default=2)
    parser.add_argument("--sub-group-size", type=int)
    parser.add_argument("--round-robin", action="store_true")
    parser.add_argument("--resume")
    parser.add_argument("--universal", action="store_true")
    parser.add_argument("--save-now", action="store_true", help="save what was loaded")
    given = parser.parse_args()
    deepspeed.init_distributed("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model = Model()
    engine, _, _, _ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(groups_of(model, given.groups), 1e-2),
        lr_scheduler=lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step / 10)),
        config=config_of(given),
    )
    if given.resume:
        path, state = engine.load_checkpoint(given.resume)
        assert path is not None, f"nothing was loaded from {given.resume}"
        assert state["client"] == {"step": engine.global_steps, "names": ["a", "b"]}
    if given.save_now:
        engine.save_checkpoint(given.out, client_state={"client": {"step": engine.global_steps, "names": ["a", "b"]}})
    data = torch.Generator().manual_seed(5)
    words = torch.randint(WORDS, (4096, 2), generator=data)
    labels = (words.sum(1) * 3 + 1) % WORDS
    while engine.global_steps < given.steps:
        step = engine.global_steps
        mine = (torch.arange(GLOBAL_BATCH) + step * GLOBAL_BATCH)[rank::world] % len(words)
        loss = nn.functional.cross_entropy(engine(words[mine]).float(), labels[mine])
        engine.backward(loss)
        engine.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        if rank == 0:
            rates = [int(rate * 1e9) for rate in engine.get_lr()]
            progress(step + 1, (total / world).item(), [*rates, *mine.tolist()])
        if engine.global_steps % given.save_every == 0:
            engine.save_checkpoint(
                given.out, client_state={"client": {"step": engine.global_steps, "names": ["a", "b"]}}
            )
    dist.destroy_process_group()


main()
