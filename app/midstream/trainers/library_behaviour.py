"""Behaviour of libraries at a resume that no file of a checkpoint shows.

`docs/reference/trainers.md` has the table; ``--check`` looks for the names in what a run executes.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class LibraryBehaviour:
    """Behaviour of a library at a resume.

    Attributes:
        library: Its name and the release in which the behaviour was seen.
        what: The state.
        kind: What becomes of the state.
        names: Names in a run's programs, settings or command that show its use.
        detail: What happens.
        hint: What to do about it.
        elsewhere: It happens on another number of processes alone.
    """

    library: str
    what: str
    kind: Literal["stored", "recomputed", "lost", "changed"]
    names: tuple[str, ...]
    detail: str
    hint: str = ""
    elsewhere: bool = False


BEHAVIOURS = (
    LibraryBehaviour(
        "trl 1.16",
        "GRPO generations",
        "changed",
        ("GRPOTrainer", "GRPOConfig", "grpo"),
        "a window of generations that has begun is generated and trained again, and later windows shift",
        "save_steps a multiple of steps_per_generation",
    ),
    LibraryBehaviour(
        "trl 1.16",
        "DPO reference model",
        "lost",
        ("sync_ref_model",),
        "the synchronized reference is not saved: a resume begins with that of the script",
        "save it in a callback, and load it before the resume",
    ),
    LibraryBehaviour(
        "peft 0.21",
        "LoRA scale",
        "changed",
        ("lora_alpha", "use_rslora"),
        "lora_alpha and use_rslora are those of the script, not those of the checkpoint",
        "the target's script needs the values of adapter_config.json",
    ),
    LibraryBehaviour(
        "schedulefree 1.4.1",
        "averaged weights",
        "stored",
        ("schedulefree", "AdamWScheduleFree", "SGDScheduleFree", "RAdamScheduleFree"),
        "a resume is exact; weights in the file are those of training, not the averaged ones, unless optimizer.eval() "
        "came before the save",
        "evaluate and export after optimizer.eval()",
    ),
    LibraryBehaviour(
        "datasets 5.2.0",
        "stream on other processes",
        "lost",
        ("streaming", "to_iterable_dataset", "split_dataset_by_node"),
        "the state is of one process' part: from 2 to 1 processes a part is read again, from 1 to 2 one is left out",
        "keep the number of processes",
        elsewhere=True,
    ),
    LibraryBehaviour(
        "datasets 5.2.0",
        "shuffle buffer of a stream",
        "lost",
        ("buffer_size",),
        "the buffer's content is not in the state: its examples are lost, and others repeated",
        "shuffle the files instead, or a data set with a length",
    ),
    LibraryBehaviour(
        "torchdata 0.11.0",
        "workers of a loader",
        "stored",
        ("StatefulDataLoader",),
        "the state is of its number of workers: another one is an AssertionError",
        "the same num_workers on every host",
    ),
    LibraryBehaviour(
        "accelerate 1.15.0",
        "gradients of an accumulation window",
        "lost",
        ("gradient_accumulation_steps", "GradientAccumulationPlugin"),
        "Accelerator.save_state within a window of gradient accumulation loses its gradients",
        "save when accelerator.sync_gradients is true",
    ),
    LibraryBehaviour(
        "keras 3.15.0",
        "epoch under BackupAndRestore",
        "changed",
        ("BackupAndRestore",),
        "the epoch begins again, and the optimizer's count goes on",
        "save_freq='epoch'",
    ),
    LibraryBehaviour(
        "keras 3.15.0",
        "seeds of dropout",
        "lost",
        ("keras",),
        "a .keras file lacks them: the masks of the first steps are drawn again",
        "save layer.seed_generator.state beside the model",
    ),
    LibraryBehaviour(
        "optax 0.2.8",
        "injected hyperparameters",
        "stored",
        ("inject_hyperparams",),
        "a number is restored over that of the script; of a schedule the script's counts",
        'set state.hyperparams["learning_rate"] after the restore to change it',
    ),
    LibraryBehaviour(
        "orbax-checkpoint 0.12.8",
        "saves after an earlier checkpoint",
        "lost",
        ("CheckpointManager",),
        "no step is saved up to the newest one in the directory: save returns False without a warning",
        "remove the later checkpoints before training goes on from an earlier one",
    ),
    LibraryBehaviour(
        "grain 0.2.18",
        "position of a MapDataset",
        "changed",
        ("MapDataset",),
        "the state is wrong without a message with another batch, shard or number of workers",
        "the same batch, shards and workers on every host",
        elsewhere=True,
    ),
)
NAMES = tuple(dict.fromkeys(name for behaviour in BEHAVIOURS for name in behaviour.names))


def behaviours_of(names: Collection[str], *, same_processes: bool) -> list[LibraryBehaviour]:
    """Return the behaviours of libraries that the names show."""
    return [
        behaviour
        for behaviour in BEHAVIOURS
        if not (behaviour.elsewhere and same_processes) and any(name in names for name in behaviour.names)
    ]
