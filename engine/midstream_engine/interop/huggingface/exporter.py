"""Export of a checkpoint's weights as a Hugging Face model directory."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import partial

import numpy as np

from midstream_engine.checkpoint.boxes import Box, full_box
from midstream_engine.interop.errors import ConversionError
from midstream_engine.interop.exported_run import MASTER, ExportedParameter, ExportedRun
from midstream_engine.interop.exporters import Exported, ExportOptions
from midstream_engine.interop.huggingface.configuration import to_huggingface
from midstream_engine.interop.huggingface.names import TensorRule, rules_of, unpadded
from midstream_engine.interop.tensor_files import Outgoing, write_tensors
from midstream_engine.interop.tokenizer_files import copy_files


def export(run: ExportedRun, directory: str, options: ExportOptions) -> Exported:
    """Write config.json, safetensors files and the tokenizer's files to ``directory``.

    Raises:
        ConversionError: Hugging Face has no such model, or a number is too large for the type.
    """
    described = to_huggingface(run.config.model, run.vocab_size, options.dtype)
    weights = list(tensors(run, MASTER, options.dtype))
    with open(os.path.join(directory, "config.json"), "w", encoding="utf-8") as file:
        json.dump(described, file, indent=2, sort_keys=True)
    copy_files(run.tokenizer, directory)
    return Exported(write_tensors(directory, weights, options.max_shard_size))


def tensors(run: ExportedRun, kind: str, dtype: str) -> Iterator[Outgoing]:
    """Yield Hugging Face's tensors of one kind of array, those of layers last.

    Args:
        run: The run.
        kind: A prefix: ``MASTER``, or that of a moment.
        dtype: Type of the tensors.

    Raises:
        ConversionError: The vocabulary has fewer rows than ``run.vocab_size``.
    """
    for rule in sorted(rules_of(run.config.model), key=lambda rule: rule.stacked):
        parameter = run.parameters[rule.ours]
        real = unpadded(parameter.axes, parameter.shape, run.vocab_size)
        if any(have < want for have, want in zip(parameter.shape, real, strict=True)):
            raise ConversionError(
                f"{rule.ours} has shape {parameter.shape}, too small for a vocabulary of {run.vocab_size}"
            )
        for layer in range(parameter.layers or 1):
            make = partial(tensor, rule, parameter, kind, layer, full_box(real))
            yield Outgoing(rule.theirs.format(layer), dtype, rule.form.shape(real), make)


def tensor(rule: TensorRule, parameter: ExportedParameter, kind: str, layer: int, box: Box) -> np.ndarray:
    """Return one layer of an array in Hugging Face's layout."""
    return rule.form.theirs(parameter.read(kind, layer, box))
