"""Log a few steps with a tracker: ``python log_metrics.py wandb|trackio OUT``."""

from __future__ import annotations

import importlib
import sys

STEPS = 6


def main() -> None:
    """Log loss and learning rate of steps 1 to STEPS, as the Trainer of transformers names them."""
    kind, out = sys.argv[1:]
    tracker = importlib.import_module(kind)
    run = tracker.init(project="demo", name="first", **({"dir": out} if kind == "wandb" else {}))
    for step in range(1, STEPS + 1):
        row = {"train/loss": 1 / step, "train/learning_rate": 0.1 * step, "train/global_step": step}
        tracker.log(row, **({"step": step} if kind == "trackio" else {}))
    tracker.finish()
    del run


main()
