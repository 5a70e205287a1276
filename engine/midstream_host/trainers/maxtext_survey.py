"""Survey of MaxText's checkpoints of Orbax, without its library.

Arrays are compressed, so the step is that of the name. Standard library only; Python 3.8.
"""

from __future__ import annotations

import os
from typing import Dict, List, NamedTuple, Optional, Sequence

from midstream_core import maxtext_checkpoints
from midstream_core.json_types import optional_object
from midstream_host.trainers.checkpoint_files import (
    STATE_LIMIT,
    CheckpointFiles,
    normal_path,
    object_of,
    places_of,
    text_of,
)

# Settings of MaxText that a plan needs; others of its log are left out.
SETTINGS = (
    "emb_dim", "mlp_dim", "num_query_heads", "num_kv_heads", "head_dim", "num_decoder_layers", "vocab_size",
    "logits_via_embedding", "max_target_length", "global_batch_size_to_train_on", "steps",
    "learning_rate_schedule_steps", "dtype", "weight_dtype", "matmul_precision",
)  # fmt: skip
_MARKS = (maxtext_checkpoints.COMMITTED, maxtext_checkpoints.COMMITTED_MARK)


class MaxTextFacts(NamedTuple):
    """The fields of a survey after its kind and directory."""

    step: int
    size: int
    configs: Dict[str, str]
    shapes: Dict[str, List[int]]
    numbers: Dict[str, int]


def find(files: CheckpointFiles, path: str, names: Sequence[str]) -> Optional[str]:
    """Return the finished checkpoint at ``path``, or the newest in it.

    None: there is none. ``names``: those in ``path``. Raises ValueError where ``path`` is one that was not finished.
    """
    places = places_of(files)
    if not any(mark in names for mark in _MARKS):
        return maxtext_checkpoints.newest(places, path)
    if not maxtext_checkpoints.is_committed(places, path):
        raise ValueError("{}: has no time of the commit: the checkpoint is not complete".format(path))
    return path


def facts(files: CheckpointFiles, path: str, config: str) -> MaxTextFacts:
    """Survey a finished checkpoint.

    ``config``: MaxText's log, or a YAML file of its settings; empty: near the checkpoint.

    Raises ValueError, and what ``files`` raises.
    """
    step = maxtext_checkpoints.saved_step(path)
    if step is None:
        raise ValueError("{}: its name is no number of a step, as MaxText names checkpoints".format(path))
    tree = os.path.join(path, maxtext_checkpoints.ITEM, maxtext_checkpoints.TREE)
    leaves = optional_object(object_of(files, tree, STATE_LIMIT).get("tree_metadata"))
    candidates = [config] if config else [os.path.join(path, name) for name in maxtext_checkpoints.CONFIGS]
    config_path = next((candidate for candidate in candidates if files.is_file(candidate)), None)
    if config_path is None:
        raise ValueError(
            "{}: the run's configuration is missing: --config names MaxText's log, with log_config=true, or a YAML "
            "file of its settings".format(config or path)
        )
    with files.open(config_path) as file:
        logged = maxtext_checkpoints.logged_settings(line.decode(errors="replace") for line in file)
    shown = "".join("{}: {}\n".format(name, logged[name]) for name in SETTINGS if name in logged)
    configs = {normal_path(config_path): shown or text_of(files, config_path)}
    numbers = {"optimizer": int(any("'opt_state'" in leaf and "'nu'" in leaf for leaf in leaves))}
    return MaxTextFacts(step, sum(files.sizes(path).values()), configs, {}, numbers)
