"""Save a checkpoint with the keys of torchtitan's loader: ``python save_torchtitan.py PATH``."""

from __future__ import annotations

import pickle
import sys

import torch
from torch.distributed import checkpoint

RANKS = 2
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.AdamW(model.parameters())
model(torch.ones(1, 2)).sum().backward()
optimizer.step()
loader = {**{f"dp_rank_{rank}": pickle.dumps({"position": 2}) for rank in range(RANKS)}, "world_size": RANKS}
state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "dataloader": loader}
checkpoint.save({**state, "train_state": {"step": 2}}, checkpoint_id=sys.argv[1])
