"""Train a tiny model with MaxText's own loop, on given batches: ``python train_maxtext.py REQUEST.json``.

REQUEST has ``config`` (a YAML file), ``settings`` (they go before it) and ``batches`` [update, batch, position + 1].
The loop, model, optimizer and checkpoints are MaxText's; its metrics are written to ``metrics_file``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from absl import app
from maxtext.input_pipeline import input_pipeline_interface
from maxtext.trainers.pre_train import train


def examples(batches: list[list[list[int]]]) -> Iterator[dict[str, np.ndarray]]:
    """Yield the arrays that MaxText's pipelines make of rows of one document."""
    for batch in batches:
        tokens = np.asarray(batch, np.int32)
        places = np.broadcast_to(np.arange(tokens.shape[1], dtype=np.int32), tokens.shape)
        ones = np.ones_like(tokens[:, 1:])
        yield {
            "inputs": tokens[:, :-1], "inputs_position": places[:, :-1], "inputs_segmentation": ones,
            "targets": tokens[:, 1:], "targets_position": places[:, 1:], "targets_segmentation": ones,
        }  # fmt: skip


def main() -> None:
    """Train as the request says."""
    request = json.loads(Path(sys.argv[1]).read_text())
    data = examples(request["batches"])
    input_pipeline_interface.create_data_iterator = lambda *_: (data, None)
    settings = [f"{name}={value}" for name, value in request["settings"].items()]
    app.run(train.main, ["train", request["config"], *settings])


main()
