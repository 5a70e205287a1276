"""Arguments of a Trainer: ``training_args.bin``, or the JSON file of an export."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping

from midstream_core.restricted_pickle import Global, PickleError, Record, Vocabulary, load
from midstream_engine.interop.archive import TorchFile
from midstream_engine.interop.errors import ConversionError, PickleRejectedError
from midstream_engine.interop.foreign_values import ForeignConfig, ForeignValue
from midstream_engine.interop.huggingface_trainer.exporter import ARGUMENTS

FILE = "training_args.bin"
# Arguments that may have one value, because another one is another update.
_ONLY: Mapping[str, object] = {
    "label_smoothing_factor": 0.0, "neftune_noise_alpha": None, "optim_args": None, "deepspeed": None, "fsdp": None,
    "optim_target_modules": None,
}  # fmt: skip
_OPTIMIZERS = ("adamw_torch", "adamw_torch_fused")


def read_arguments(source: str) -> dict[str, ForeignValue]:
    """Return the arguments by name: plain values, enumerations as their values.

    ``source``: the checkpoint.

    Raises:
        ConversionError: They are missing, damaged, or of an update that is not computed here.
    """
    path, exported = (os.path.join(source, FILE), os.path.join(os.path.dirname(os.path.abspath(source)), ARGUMENTS))
    if os.path.exists(path):
        arguments = _pickled(path)
    elif os.path.exists(exported):
        arguments = json_object(exported)
    else:
        raise ConversionError(f"{source}: lacks {FILE}, which has the schedule and the clipping")
    optimizer = arguments.get("optim", _OPTIMIZERS[0])
    if optimizer not in _OPTIMIZERS:
        raise ConversionError(f"{FILE}: optim: {optimizer!r} is none of {', '.join(_OPTIMIZERS)}")
    for name, only in _ONLY.items():
        value = arguments.get(name, only)
        if (value or None) != (only or None):
            raise ConversionError(f"{FILE}: {name}: {value!r} cannot be carried over, only {only!r}")
    return arguments


def processes(arguments: ForeignConfig) -> int:
    """Return how many processes trained."""
    state = arguments.get("distributed_state")
    count = state.get("num_processes") if isinstance(state, Mapping) else None
    return count if isinstance(count, int) and count > 0 else 1


def json_object(path: str) -> dict[str, ForeignValue]:
    """Read a JSON object. ConversionError if the file has none."""
    try:
        with open(path, encoding="utf-8") as file:
            return dict(json.load(file))
    except (ValueError, TypeError) as error:
        raise ConversionError(f"{path}: not a JSON object ({error})") from None


def _pickled(path: str) -> dict[str, ForeignValue]:
    value = TorchFile(path, _load).value
    if not isinstance(value, Record) or value.kind.name.rpartition(".")[2] != "TrainingArguments":
        kind = value.kind.name if isinstance(value, Record) else type(value).__name__
        raise ConversionError(f"{path}: has {kind}, and not TrainingArguments")
    if not isinstance(value.state, Mapping):
        raise ConversionError(f"{path}: its TrainingArguments are empty")
    return {str(name): _plain(item) for name, item in value.state.items()}


def _plain(value: ForeignValue) -> ForeignValue:
    """Return an enumeration's value, or the state of an object."""
    if not isinstance(value, Record):
        return value
    return value.arguments[0] if len(value.arguments) == 1 and value.state is None else value.state


class _Inert(Vocabulary):
    """Objects of any class become records."""

    inert = True

    def allows(self, module: str, name: str) -> bool:  # noqa: ARG002
        """Allow every name: none is looked up."""
        return True

    def call(self, function: Global, arguments: tuple[object, ...]) -> object:
        """Return a record."""
        return Record(function, arguments)


def _load(data: bytes, persistent: Callable[[object], object]) -> object:  # noqa: ARG001
    try:
        return load(data, _Inert())
    except PickleError as error:
        raise PickleRejectedError(str(error)) from None
