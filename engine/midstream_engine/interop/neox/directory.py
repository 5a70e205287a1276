"""The files of a NeoX checkpoint, and the parallelism of the run that wrote them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field

import yaml

from midstream_core.json_types import JsonValue
from midstream_core.latest_file import named_folder
from midstream_core.yaml_includes import YamlError, compose_text
from midstream_engine.interop.errors import ConversionError
from midstream_engine.interop.foreign_values import TorchValue

_MODEL = re.compile(r"mp_rank_(\d+)_model_states\.pt")
_LAYER = re.compile(r"layer_(\d+)(?:-model_(\d+))?-model_states\.pt")
_OPTIMIZER = re.compile(r"(?:bf16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_?optim_states\.pt")


@dataclass
class Files:
    """The files of one checkpoint.

    ``models`` by model-parallel rank; ``layers`` by (layer, tensor-parallel rank); ``optimizers`` by (model-parallel
    rank, data-parallel rank).
    """

    directory: str
    models: dict[int, str] = field(default_factory=dict)
    layers: dict[tuple[int, int], str] = field(default_factory=dict)
    optimizers: dict[tuple[int, int], str] = field(default_factory=dict)

    @property
    def pipeline(self) -> bool:
        """Whether NeoX's pipeline module wrote it (``pipe_parallel_size`` of 1 or more)."""
        return bool(self.layers)

    @property
    def tensor(self) -> int:
        """Ranks of tensor parallelism."""
        return 1 + max(rank for _, rank in self.layers) if self.layers else len(self.models)

    @property
    def stages(self) -> int:
        """Stages of the pipeline; 0: there was none."""
        return len(self.models) // self.tensor if self.pipeline else 0

    def all(self) -> list[str]:
        """Return every file, by path."""
        return sorted([*self.models.values(), *self.layers.values(), *self.optimizers.values()])

    def stamp(self) -> list[TorchValue]:
        """Return sizes and times of the files, which identify the state of the source."""
        stats = [(os.path.relpath(path, self.directory), os.stat(path)) for path in self.all()]
        return [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]


def is_checkpoint(path: str) -> bool:
    """Return whether ``path`` is a ``load:`` folder of NeoX or a checkpoint in one."""
    names = os.listdir(path) if os.path.isdir(path) else []
    return any(_MODEL.fullmatch(name) for name in names) or (
        "latest" in names and any(name.startswith("global_step") for name in names)
    )


def find(path: str) -> Files:
    """Return the checkpoint at ``path``, or the one that ``latest`` there names.

    ``path``: the checkpoint's own directory, or the ``load:`` directory that has ``latest``.

    Raises:
        ConversionError: There is no checkpoint, or files are missing.
    """
    latest = os.path.join(path, "latest")
    if os.path.isfile(latest):
        with open(latest, encoding="utf-8", errors="replace") as file:
            text = file.read(200)
        try:
            path = os.path.join(path, named_folder(text, os.listdir(path)))
        except ValueError as error:
            raise ConversionError(f"{path}/{error}") from None
    if not os.path.isdir(path):
        raise ConversionError(f"{path}: no such directory, though {latest} names it")
    files = Files(path)
    for name in os.listdir(path):
        full = os.path.join(path, name)
        if match := _MODEL.fullmatch(name):
            files.models[int(match[1])] = full
        elif match := _LAYER.fullmatch(name):
            files.layers[int(match[1]), int(match[2] or 0)] = full
        elif match := _OPTIMIZER.fullmatch(name):
            files.optimizers[int(match[2]), int(match[1])] = full
        elif name.startswith("zero_") or name == "zero":
            raise ConversionError(f"{full}: a universal checkpoint of DeepSpeed (hint: convert its source)")
    if not files.models:
        raise ConversionError(f"{path}: no checkpoint of GPT-NeoX: there is no mp_rank_00_model_states.pt")
    _check_complete(files)
    return files


def _check_complete(files: Files) -> None:
    missing = [f"mp_rank_{rank:02d}_model_states.pt" for rank in range(max(files.models)) if rank not in files.models]
    if files.layers:
        layers = sorted({layer for layer, _ in files.layers})
        ranks = range(files.tensor)
        missing += [
            f"layer_{layer:02d}-model_{rank:02d}-model_states.pt"
            for layer in layers
            for rank in ranks
            if (layer, rank) not in files.layers
        ]
        if len(files.models) % files.tensor:
            raise ConversionError(
                f"{files.directory}: {len(files.models)} model-parallel ranks do not divide into {files.tensor} "
                "tensor-parallel ones"
            )
    if files.optimizers:
        data = 1 + max(rank for _, rank in files.optimizers)
        missing += [
            f"zero_pp_rank_{rank}_mp_rank_{model:02d}_optim_states.pt"
            for model in files.models
            for rank in range(data)
            if (model, rank) not in files.optimizers
        ]
    if missing:
        raise ConversionError(f"{files.directory}: {len(missing)} files are missing: {', '.join(missing[:6])}")


def read_configs(directory: str) -> dict[str, TorchValue]:
    """Return the run's configuration: all ``configs/*.yml`` merged.

    NeoX's names are in their underscore form.

    Raises:
        ConversionError: There is none, or two files differ.
    """
    folder = os.path.join(directory, "configs")
    names = (
        sorted(name for name in os.listdir(folder) if name.endswith((".yml", ".yaml", ".json")))
        if os.path.isdir(folder)
        else []
    )
    if not names:
        raise ConversionError(f"{folder}: the configuration that NeoX stores with a checkpoint (*.yml) is missing")
    merged: dict[str, JsonValue] = {}
    for name in names:
        path = os.path.join(folder, name)
        try:
            with open(path, encoding="utf-8") as file:
                text = file.read()
            compose_text(text, path)  # refuses aliases that stand for too much
            value = yaml.safe_load(text)
        except (yaml.YAMLError, YamlError, UnicodeDecodeError) as error:
            raise ConversionError(f"{path}: not YAML: {' '.join(str(error).split())[:200]}") from None
        if not isinstance(value, dict):
            raise ConversionError(f"{path}: expected keys and values")
        for key, item in value.items():
            key = str(key).replace("-", "_")
            if key in merged and merged[key] != item:
                raise ConversionError(f"{path}: {key} is {item!r} here and {merged[key]!r} in another file")
            merged[key] = item
    return merged
