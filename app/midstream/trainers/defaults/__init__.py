"""Defaults of the trainers, one file each. A run file overrides any of them."""

from __future__ import annotations

from collections.abc import Mapping

from midstream.trainers.defaults.accelerate import ACCELERATE
from midstream.trainers.defaults.deepspeed import DEEPSPEED
from midstream.trainers.defaults.huggingface import HUGGINGFACE
from midstream.trainers.defaults.levanter import LEVANTER
from midstream.trainers.defaults.lightning import LIGHTNING
from midstream.trainers.defaults.maxtext import MAXTEXT
from midstream.trainers.defaults.script import SCRIPT
from midstream.trainers.defaults.torchrun import TORCHRUN
from midstream.trainers.defaults.trainer_defaults import TrainerDefaults

TRAINERS: Mapping[str, TrainerDefaults] = {
    each.name: each for each in (HUGGINGFACE, LIGHTNING, ACCELERATE, TORCHRUN, DEEPSPEED, LEVANTER, MAXTEXT, SCRIPT)
}

__all__ = ["TRAINERS", "TrainerDefaults"]
