"""Train with a loop of one's own and one file as checkpoint, as small research codes do: ``train_script.py OUT``."""

from __future__ import annotations

import argparse
import os

import torch
from small_task import SAMPLES, Samples, network, progress
from torch import nn


def main() -> None:
    """Train, from ``OUT/ckpt.pt`` with ``--resume``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--save-every", type=int, default=5)
    parser.add_argument("--resume", action="store_true")
    given = parser.parse_args()
    os.makedirs(given.out, exist_ok=True)
    path = os.path.join(given.out, "ckpt.pt")
    model, step = network(), 0
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    if given.resume:
        saved = torch.load(path)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["iter_num"]
    data = Samples()
    while step < given.steps:
        batch = torch.randint(SAMPLES, (8,), generator=torch.Generator().manual_seed(step))
        loss = nn.functional.cross_entropy(model(data.x[batch]), data.labels[batch])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"iter {step}: loss {loss.item():.4f}, lr {1e-2:.3e}, time 12.34ms", flush=True)
        step += 1
        progress(step, loss.item(), batch.tolist())
        if step % given.save_every == 0:
            torch.save({
                "model": model.state_dict(), "optimizer": optimizer.state_dict(), "iter_num": step,
                "rng": torch.get_rng_state(), "config": vars(given),
            }, path)  # fmt: skip


main()
