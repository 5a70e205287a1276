"""Defaults of the trainers, one file each. A run file overrides any of them."""

from __future__ import annotations

from collections.abc import Mapping

from midstream.trainers.accelerate import ACCELERATE
from midstream.trainers.deepspeed import DEEPSPEED
from midstream.trainers.huggingface import HUGGINGFACE
from midstream.trainers.levanter import LEVANTER
from midstream.trainers.lightning import LIGHTNING
from midstream.trainers.maxtext import MAXTEXT
from midstream.trainers.script import SCRIPT
from midstream.trainers.torchrun import TORCHRUN
from midstream.trainers.trainer_defaults import OtherProcesses, TrainerDefaults

# A trainer that others are built on stands after them: the first that a program shows is the one it is of.
TRAINERS: Mapping[str, TrainerDefaults] = {
    trainer.name: trainer
    for trainer in (MAXTEXT, LEVANTER, DEEPSPEED, LIGHTNING, HUGGINGFACE, ACCELERATE, TORCHRUN, SCRIPT)
}

__all__ = ["SCRIPT", "TRAINERS", "OtherProcesses", "TrainerDefaults"]
