"""Load a checkpoint of `import.py`'s with DeepSpeed: a process of `reshard.py`; see there.

``torchrun ... load_deepspeed.py CHECKPOINT UNIVERSAL``: prints seconds, and bytes of memory above that before the load.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

import deepspeed  # pyright: ignore[reportMissingImports]
import torch  # pyright: ignore[reportMissingImports]
from torch import nn  # pyright: ignore[reportMissingImports]

vars(sys.modules["deepspeed.comm.torch"])["build_shm_op"] = lambda: None  # gloo will do; it would be compiled first


def own() -> int:
    """Bytes of anonymous memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


class Parameters(nn.Module):
    """Parameters with the names and shapes of a checkpoint."""

    def __init__(self, shapes: dict) -> None:
        super().__init__()
        for name, shape in shapes.items():
            module = self
            *path, last = name.split(".")
            for part in path:
                if part not in module._modules:
                    module.add_module(part, nn.Module())
                module = module._modules[part]
            module.register_parameter(last, nn.Parameter(torch.zeros(shape)))


def main() -> None:
    """Measure one load."""
    checkpoint, universal = Path(sys.argv[1]), sys.argv[2] == "1"
    model = next(iter(checkpoint.glob("mp_rank_00_model_states.pt")))
    state = torch.load(model, weights_only=False, mmap=True)
    module = Parameters({name: tuple(weight.shape) for name, weight in state["module"].items()})
    named = dict(module.named_parameters())
    rows = [{"params": [named[name] for name in group]} for group in state["param_shapes"]]
    del state
    deepspeed.init_distributed("gloo")
    engine, *_ = deepspeed.initialize(
        model=module,
        optimizer=torch.optim.AdamW([{**rows[0], "weight_decay": 0.1}, {**rows[1], "weight_decay": 0.0}], 1e-3),
        config={
            "train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "zero_optimization": {"stage": 1},
            "data_types": {"grad_accum_dtype": "fp32"}, "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False, "checkpoint": {"load_universal": universal},
        },
    )  # fmt: skip
    before, highest, over = own(), 0, threading.Event()

    def watch() -> None:
        nonlocal highest
        while not over.wait(0.005):
            highest = max(highest, own() - before)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    began = time.monotonic()
    loaded, _ = engine.load_checkpoint(str(checkpoint.parent), tag=checkpoint.name)
    seconds = time.monotonic() - began
    over.set()
    thread.join()
    assert loaded is not None
    print(json.dumps({"seconds": seconds, "memory": highest}), flush=True)


main()
