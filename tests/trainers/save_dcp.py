"""Save a checkpoint of torch without collectives: ``torchrun save_dcp.py OUT``.

Each rank writes metadata of its own.
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.tensor import DeviceMesh, Shard, distribute_tensor


def main() -> None:
    """Save a small training state at step 4."""
    dist.init_process_group("gloo")
    mesh = DeviceMesh("cpu", list(range(dist.get_world_size())))

    def sharded(scale: float) -> torch.Tensor:
        return distribute_tensor(torch.arange(32.0).reshape(8, 4) * scale, mesh, [Shard(0)])

    state = {"model": {"weight": sharded(1)}, "optimizer": {"exp_avg": sharded(2)}, "step": torch.tensor(4)}
    dcp.save(state, checkpoint_id=os.path.join(sys.argv[1], "step-4"), use_collectives=False)
    dist.destroy_process_group()


main()
