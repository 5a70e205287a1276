"""One contestant in a process of its own: ``PYTHON worker.py NAME SHAPE_JSON DIRECTORY``.

stdout: one JSON object when it has compiled and taken two steps, then for each line ``N`` on stdin one with the
seconds, the processor seconds (of all threads) and the losses of N steps. A step is what a training loop does: put the
batch on the device, update, read the loss.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

# In the place of this folder, whose modules are named like the packages that they import.
sys.path[:1] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "engine")]

from steps.shape import Shape  # noqa: E402


def main() -> None:
    name, shape, directory = sys.argv[1], Shape(**json.loads(sys.argv[2])), Path(sys.argv[3])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer

    def say(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    began = time.perf_counter()
    try:
        contestant = importlib.import_module(f"steps.{name}")
        step, facts = contestant.start(shape, directory)
    except ImportError as error:
        say({"missing": f"{type(error).__name__}: {error}"})
        return
    batches = shape.batches()

    def run(count: int) -> dict[str, list[float]]:
        seconds, processor, losses = [], [], []
        for _ in range(count):
            batch = batches.next()
            start, used = time.perf_counter(), time.process_time()
            losses.append(step(batch))
            seconds.append(time.perf_counter() - start)
            processor.append(time.process_time() - used)
        return {"seconds": seconds, "processor": processor, "losses": losses}

    first = run(2)
    say({"name": name, "ready": time.perf_counter() - began, **facts, **first})
    for line in sys.stdin:
        say(run(int(line)))


if __name__ == "__main__":
    main()
