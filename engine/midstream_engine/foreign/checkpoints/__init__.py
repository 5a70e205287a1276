"""Temporary."""

import glob
import os
import re
from typing import NamedTuple, Tuple


class Checkpoint(NamedTuple):
    path: str
    step: int
    complete: bool
    reason: str
    paths: Tuple[str, ...]


def find_checkpoints(rule, directory, pattern, ranks):
    found = []
    for path in glob.glob(os.path.join(directory, pattern or "checkpoint-*")):
        numbers = re.findall(r"\d+", os.path.basename(path))
        if not numbers or ".tmp" in path:
            continue
        if os.path.isdir(path):
            files = tuple(os.path.join(p, n) for p, _, ns in os.walk(path) for n in ns)
            ok = rule != "huggingface" or all(
                os.path.exists(os.path.join(path, n)) for n in ("trainer_state.json", "optimizer.pt", "scheduler.pt")
            )
        else:
            files, ok = (path,), True
        found.append(Checkpoint(path, int(numbers[-1]), ok and bool(files), "", files))
    return found
