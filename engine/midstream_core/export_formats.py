"""Formats of exports: the choices of `--as`, and of the converter's `--to`."""

from __future__ import annotations

from typing import Dict, Tuple

# What an export is, by the name of its format; all but the first have the optimizer.
# The writer is ``midstream_engine/interop/<name>/exporter.py``.
EXPORT_FORMATS: Dict[str, str] = {
    "huggingface": "the weights of a model",
    "huggingface-trainer": "a checkpoint of transformers' Trainer",
    "neox": "a checkpoint of GPT-NeoX",
    "deepspeed": "Hugging Face's model under DeepSpeed",
    "deepspeed-universal": "the same, for any number of processes",
    "levanter": "a checkpoint of marin-levanter 0.2",
    "levanter-1-2": "a checkpoint of Levanter 1.2",
    "torch-dcp": "torchtitan's distributed checkpoint",
    "maxtext": "an Orbax checkpoint of MaxText",
}
DATA_PARALLEL: Tuple[str, ...] = ("neox", "deepspeed")  # written for a number of data-parallel processes
MODEL_PARALLEL: Tuple[str, ...] = ("neox",)  # written for a number of tensor-parallel ranks
