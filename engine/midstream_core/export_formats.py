"""Formats of exports: the choices of `--as`, and of the converter's `--to`."""

from __future__ import annotations

from typing import Dict, Tuple

# What an export has, by the format's name. Its writer is ``midstream_engine/interop/<name>/exporter.py``.
EXPORT_FORMATS: Dict[str, str] = {
    "huggingface": "the weights of a model",
    "huggingface-trainer": "a checkpoint that transformers' Trainer resumes",
    "neox": "a checkpoint of GPT-NeoX, with its optimizer and schedule",
    "deepspeed": "Hugging Face's model under DeepSpeed, with its optimizer",
    "deepspeed-universal": "the same for any number of processes and any ZeRO stage",
    "levanter": "a checkpoint of marin-levanter 0.2, with its optimizer",
    "levanter-1-2": "the same for Levanter 1.2",
    "torch-dcp": "a distributed checkpoint of torch by the names of torchtitan, with its optimizer",
}
DATA_PARALLEL: Tuple[str, ...] = ("neox", "deepspeed")  # written for a number of data-parallel processes
MODEL_PARALLEL: Tuple[str, ...] = ("neox",)  # written for a number of tensor-parallel ranks
