"""A task that every trainer of the tests trains: a classifier of small vectors, with dropout, from a fixed data set."""

from __future__ import annotations

import os
import sys
import time

import torch
from torch import nn

SAMPLES, FEATURES, CLASSES = int(os.environ.get("SAMPLES", "4096")), 4, 3


class Samples(torch.utils.data.Dataset):
    """Samples of a fixed seed. Each item: ``index``, ``x`` float32 [features], ``labels`` int64."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(7)
        self.x = torch.randn(SAMPLES, FEATURES, generator=generator)
        self.labels = torch.randint(CLASSES, (SAMPLES,), generator=generator)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict:
        return {"index": torch.tensor(index), "x": self.x[index], "labels": self.labels[index]}


DROPOUT = float(os.environ.get("DROPOUT", "0.1"))


def network(dropout: float = DROPOUT) -> nn.Sequential:
    """A network of a few hundred bytes."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(FEATURES, 4), nn.Tanh(), nn.Dropout(dropout), nn.Linear(4, CLASSES))


def progress(step: int, loss: float, indices: list | None = None) -> None:
    """Print one line of a step, exactly, and wait as long as STEP_SECONDS says."""
    rank = os.environ.get("RANK", "0")
    # One write: lines of several ranks share a pipe.
    sys.stdout.write(f"rank={rank} step={step} loss={loss.hex()} batch={','.join(map(str, indices or []))}\n")
    sys.stdout.flush()
    time.sleep(float(os.environ.get("STEP_SECONDS", "0")))
