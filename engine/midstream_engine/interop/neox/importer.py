"""Import of NeoX checkpoints: state, schedule, and position in the data.

The state has weights, masters, moments and counts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from midstream_core.json_types import JsonValue
from midstream_engine.checkpoint.array_names import LogicalArray
from midstream_engine.checkpoint.boxes import full_box
from midstream_engine.config.load import from_mapping
from midstream_engine.config.model import LmConfig
from midstream_engine.config.train import TrainLmConfig
from midstream_engine.data.neox_dataset import import_neox
from midstream_engine.interop.calls import Tensor
from midstream_engine.interop.errors import ConversionError
from midstream_engine.interop.foreign_run import ForeignRun, constant, encoded_model, state_arrays
from midstream_engine.interop.foreign_values import TorchValue
from midstream_engine.interop.huggingface.names import TensorRule as Form
from midstream_engine.interop.imported_array import ImportedArray, Piece
from midstream_engine.interop.neox.accumulation import GradientScale, gradient_scale
from midstream_engine.interop.neox.architecture import (
    AS_FOUND,
    DEFAULTS,
    Choices,
    Settings,
    Shapes,
    model_of,
    optimizer_of,
    precision_of,
)
from midstream_engine.interop.neox.arguments import check_arguments, with_extra
from midstream_engine.interop.neox.directory import find, read_configs
from midstream_engine.interop.neox.names import Source, parameters_of, sources_of
from midstream_engine.interop.neox.partitions import LEGACY, ParameterRow
from midstream_engine.interop.neox.reader import Read, read
from midstream_engine.interop.neox.revision import BLOCKED, revision_of
from midstream_engine.interop.neox.rounding import rounded_to
from midstream_engine.interop.neox.tensors import FIRST_BLOCK, MLPS, ROWS, Key, Merging, MlpNames
from midstream_engine.interop.tokenizer_files import beside_data

_MODEL, _MU, _NU = "model/", "optimizer/adam/mu/", "optimizer/adam/nu/"
_VOCABULARIES = {
    "HFTokenizer": "tokenizer.json", "GPT2BPETokenizer": "vocab.json", "SPMTokenizer": "tokenizer.model",
}  # fmt: skip
_COMPARED = 2 << 20  # numbers that are compared at a time
_KINDS = {_MODEL: "fp32", _MU: "exp_avg", _NU: "exp_avg_sq"}


def open_neox(path: str, choices: Choices = AS_FOUND) -> ForeignRun:
    """Open the checkpoint at ``path`` with the configuration that continues it.

    ``path``: a checkpoint, or a ``load:`` directory.

    ``choices``: what the user says of the NeoX that wrote it.

    Raises:
        ConversionError: Anything is unused, missing, of another shape, inconsistent, ambiguous or unknown.
    """
    files = find(path)
    checkpoint = read(files)
    settings = Settings(with_extra(read_configs(files.directory)))
    notes: list[str] = []
    check_arguments(settings.values, DEFAULTS, notes)
    shapes, mlp = _shapes(checkpoint)
    revision = revision_of(settings.values, [name for _, name in sorted(checkpoint.parameters)], checkpoint.state)
    model, gqa_layout = model_of(settings, shapes, revision, choices, notes)
    schedule = checkpoint.state.get("lr_scheduler")
    schedule = schedule if isinstance(schedule, dict) and "num_iters" in schedule else None
    optimizer, total = optimizer_of(settings, schedule, checkpoint.groups, checkpoint.clipping, notes)
    scale = gradient_scale(checkpoint.state, settings.values, files.stages, files.directory)
    scale.correct(optimizer, notes)
    batch = _global_batch(checkpoint, settings)
    mapping = {
        "data": {"tokenizer": f"ids:{shapes.vocab}", "shuffle": False, "block_cross_document_attention": False,
                 "next_token": True},
        "model": encoded_model(model),
        "optimizer": optimizer,
        "trainer": {
            "seed": int(settings.get("seed")), "num_train_steps": total, "train_batch_size": batch,
            "mp": precision_of(settings, notes),
        },
    }  # fmt: skip
    config = from_mapping(mapping).config
    _check_decay(checkpoint, optimizer)
    build = _Build(checkpoint, model, config, shapes.vocab, mlp, gqa_layout, scale)
    arrays = build.arrays()
    count = checkpoint.iteration - checkpoint.skipped
    adam_count = next(iter(checkpoint.steps), count)
    schedule_count = int(schedule["num_iters"]) if schedule else count
    arrays += [
        constant(build.arrays_by_name["optimizer/adam/count"], adam_count),
        constant(build.arrays_by_name["optimizer/schedule/count"], schedule_count),
        constant(build.arrays_by_name["key"], None),
    ]
    build.check_all_made(arrays)
    if checkpoint.skipped:
        notes.append(
            f"{checkpoint.skipped} updates were skipped for an overflow: they count as steps, and as in NeoX neither "
            "in Adam nor in the learning-rate schedule"
        )
    if checkpoint.writer == LEGACY:
        notes.append(
            "the layout of DeeperSpeed 1.0 is implemented from its description and was not tested on a real file; "
            "masters and weights were compared"
        )
    notes.append("the state of torch's random generators has no counterpart; nothing of the run depends on it here")
    directory = os.path.abspath(files.directory)
    tokenizer = _tokenizer(settings, [os.path.dirname(directory), directory], notes)
    state = {
        "step": checkpoint.iteration, "optimizer_count": adam_count, "schedule_count": schedule_count,
        "next_sample": checkpoint.iteration * batch, "batch_schedule": config.trainer.batch_schedule().to_json(),
        "seed": config.trainer.seed, "seq_len": model.seq_len, "shuffle": False, "data_digest": "",
        "tokenizer": f"ids:{shapes.vocab}",
    }  # fmt: skip
    provenance = {
        "time": time.time(), "converted_from": "neox", "source": files.directory, "written_by": checkpoint.writer,
        "vocab_size": shapes.vocab, "neox": {name: str(value) for name, value in sorted(settings.values.items())},
    }  # fmt: skip
    stamp = [*files.stamp(), gqa_layout, scale.factor]  # the last two decide what the arrays have, and no other setting
    return ForeignRun("neox", checkpoint.iteration, mapping, arrays, state, provenance, notes, stamp, build.remarks,
                   checkpoint.verify, partial(_link_data, _data(settings, batch), f"ids:{shapes.vocab}", tokenizer),
                   tokenizer)  # fmt: skip


def _data(settings: Settings, batch: int) -> dict[str, TorchValue]:
    """Return the description of the run's data."""
    paths = settings.get("train_data_paths") or ([settings.get("data_path")] if settings.get("data_path") else [])
    return {
        "paths": list(paths), "weights": settings.get("train_data_weights"),
        "split": not settings.get("train_data_paths"),
        "samples": int(settings.must("train_iters")) * batch, "seq_len": int(settings.must("seq_length")),
        "seed": int(settings.get("seed")),
    }  # fmt: skip


def _tokenizer(settings: Settings, near: Sequence[str], notes: list[str]) -> dict[str, str]:
    """Return the tokenizer's files in the configuration, by Hugging Face's names."""
    files: dict[str, str] = {}
    kind = str(settings.get("tokenizer_type") or "")
    for setting, usual in (("vocab_file", _VOCABULARIES.get(kind)), ("merge_file", "merges.txt")):
        name = settings.get(setting)
        if not name:
            continue
        places = [str(name), *(os.path.join(folder, os.path.basename(str(name))) for folder in near)]
        path = next((place for place in places if os.path.isfile(place)), None)
        if path is None:
            notes.append(
                f"configs: {setting.replace('_', '-')}: {name} is not here: that file of the tokenizer is not imported"
            )
        else:
            files[usual or os.path.basename(path)] = os.path.abspath(path)
    return files


def _link_data(
    about: dict[str, TorchValue], tokenizer: str, files: dict[str, str], place: str, given: Sequence[str]
) -> str:
    """Link the run's datasets under ``place``; return their directory."""
    paths = list(given) or about["paths"]
    if not paths:
        raise ConversionError("the source names no dataset (hint: --data names it, --without-data skips it)")
    if len(paths) != len(about["paths"] or paths):
        raise ConversionError(f"--data names {len(paths)} datasets, the run has {len(about['paths'])}")
    return import_neox(
        place, paths, about["weights"], split=about["split"], samples=about["samples"], seq_len=about["seq_len"],
        seed=about["seed"], tokenizer=tokenizer, beside=beside_data(files),
    )  # fmt: skip


def _shapes(state: Read) -> tuple[Shapes, MlpNames]:
    keys = state.parameters
    numbers = {layer for layer, name in keys if name.startswith("attention.")}
    layers = len(numbers)
    if numbers != set(range(FIRST_BLOCK, FIRST_BLOCK + layers)) or not layers:
        raise ConversionError(f"{state.files.directory}: layers {sorted(numbers)} are not a complete GPT-NeoX model")
    names = next((names for names in MLPS if (FIRST_BLOCK, f"{names.up}.weight") in keys), None)
    if names is None or (0, "word_embeddings.weight") not in keys:
        raise ConversionError(f"{state.files.directory}: has no word_embeddings.weight or no {MLPS[0].up}.weight")
    vocab, hidden = _full(state, (0, "word_embeddings.weight"), 0)
    mlp = _full(state, (FIRST_BLOCK, f"{names.up}.weight"), 0)[0] * (1 if names.gate == names.up else 2)
    head = (layers + 4, "final_linear.weight") in keys
    return Shapes(layers, hidden, vocab, mlp, head), names


def _full(state: Read, key: Key, axis: int) -> tuple[int, ...]:
    weights = state.parameters[key].weights
    shape = list(weights[0].shape)
    shape[axis] *= len(weights)
    return tuple(shape)


def _global_batch(state: Read, settings: Settings) -> int:
    """Return the examples of an update."""
    given = settings.get("train_batch_size")
    micro, steps = settings.get("train_micro_batch_size_per_gpu"), settings.get("gradient_accumulation_steps")
    data = state.state.get("dp_world_size")
    made = int(micro) * int(steps or 1) * int(data) if micro and data else None
    if given is not None:
        return int(given)
    if made is None:
        raise ConversionError("configs: train-batch-size is missing, and it does not follow from the other values")
    return made


def _check_decay(state: Read, optimizer: dict[str, JsonValue]) -> None:
    expected_decay = optimizer["weight_decay"]
    for key, decay in state.decays.items():
        plain = key[1].endswith(".bias") or "norm" in key[1]
        if decay != (0.0 if plain else expected_decay):
            raise ConversionError(
                f"{key[0]}.{key[1]} decays by {decay:g}; NeoX's rule with weight-decay {expected_decay:g} would be "
                f"{0.0 if plain else expected_decay:g}"
            )


@dataclass
class _Build:
    checkpoint: Read
    model: LmConfig
    config: TrainLmConfig
    vocab: int
    mlp: MlpNames
    gqa_layout: str
    scale: GradientScale
    arrays_by_name: dict[str, LogicalArray] = field(init=False)
    merging: Merging = field(init=False)

    def __post_init__(self) -> None:
        self.arrays_by_name = state_arrays(self.config, self.vocab)
        self.merging = Merging(
            self.model.num_heads, self.model.kv_heads, self.gqa_layout == BLOCKED, self.model.gated_mlp,
            bool(getattr(self.model, "use_parallel_residual", False)),
        )  # fmt: skip

    def arrays(self) -> list[ImportedArray]:
        """Return parameters and moments.

        Raises:
            ConversionError: Parameters and model do not match one to one.
        """
        result, used, wrong, missing = [], set[Key](), [], []
        for form, source in sources_of(self.model, self.mlp, self.gqa_layout):
            keys = parameters_of(self.model, source)
            used.update(keys)
            missing += [key for key in keys if key not in self.checkpoint.parameters]
            if any(key not in self.checkpoint.parameters for key in keys):
                continue
            for prefix, kind in _KINDS.items():
                array = self.arrays_by_name[prefix + form.ours]
                shape = array.shape[1:] if form.stacked else array.shape
                wrong += self._misshapen(form, source, keys, shape) if kind == "fp32" else []
                pieces = partial(self._pieces, form, source, array.shape)
                read = partial(self._read, keys, kind)
                planes = len(keys) if form.stacked else 1
                result.append(
                    ImportedArray(
                        array.name, array.axes, array.shape, array.dtype, pieces, read, planes, (kind, keys[0])
                    )
                )
        unused = sorted(self.checkpoint.parameters.keys() - used)
        problems = [
            f"{what}: {', '.join(f'{layer}.{name}' for layer, name in keys[:10])}{' ...' if keys[10:] else ''}"
            for what, keys in (
                ("unused", unused),
                ("missing", sorted(set(missing))),
                ("misshapen", sorted(set(wrong))),
            )
            if keys
        ]
        if problems:
            raise ConversionError(
                f"{self.checkpoint.files.directory}: the tensors do not fit the model; {'; '.join(problems)}"
            )
        return result

    def _misshapen(self, form: Form, source: Source, keys: list[Key], shape: tuple[int, ...]) -> list[Key]:
        expected = form.form.shape(shape)
        wrong = []
        for key in keys:
            weights = self.checkpoint.parameters[key].weights
            full = self.merging.full_shape(key[1], [weights[rank].shape for rank in sorted(weights)])
            picked = full if source[2] is None else source[2](np.broadcast_to(np.int8(0), full)).shape
            if picked != expected:
                wrong.append(key)
        return wrong

    def _read(self, keys: list[Key], kind: str, plane: int) -> list[np.ndarray]:
        """Read one parameter and join the ranks' parts.

        The result is a single array; of the embedding and the head, which are larger than a layer, their rows [vocab,
        embed] in blocks, as stored. Masters must match the weights, and copies in two stages must be equal.
        """
        key = keys[plane]
        parameter = self.checkpoint.parameters[key]
        rows = [parameter.rows[rank][kind] for rank in sorted(parameter.rows)]
        loaded = []
        for rank, row in zip(sorted(parameter.rows), rows, strict=True):
            parts = row.load()
            twin = parameter.twins.get(rank)
            if twin is not None and not np.array_equal(row.joined(parts), twin[kind].read()):
                raise ConversionError(f"{key[0]}.{key[1]}: the two stages that have it differ in {kind}")
            if kind == "fp32":
                _check_weight(key, row, parts, parameter.weights[rank])
            loaded.append(parts)
        if key[1] in ROWS:
            blocks = [block for row, parts in zip(rows, loaded, strict=True) for block in row.blocks(parts)]
            return [self.scale.apply(kind, block) for block in blocks]
        parts = [row.joined(parts) for row, parts in zip(rows, loaded, strict=True)]
        return [self.scale.apply(kind, self.merging.merge(key[1], kind, parts))]

    def _pieces(
        self, form: Form, source: Source, shape: tuple[int, ...], plane: int, read: list[np.ndarray]
    ) -> list[Piece]:
        """Return the parameter as ours: views of what was read, or a copy if joined."""
        if source[1] in ROWS:
            return _rows(read, shape, 0 if source[1] == ROWS[0] else 1)
        pick: Callable[[np.ndarray], np.ndarray] | None = source[2]
        inner = shape[1:] if form.stacked else shape
        (merged,) = read
        ours = form.form.ours(merged if pick is None else pick(merged), inner)
        box = full_box(inner)
        return [(((plane, plane + 1), *box), ours[None]) if form.stacked else (box, ours)]

    def check_all_made(self, arrays: list[ImportedArray]) -> None:
        """Check that the state of the configuration has the same arrays.

        Raises:
            ConversionError: The state has other arrays.
        """
        differing = sorted(self.arrays_by_name.keys() ^ {array.name for array in arrays})
        if differing:
            raise ConversionError(f"these arrays of the state have no source: {', '.join(differing)}")

    def remarks(self) -> list[str]:
        """Return notes that were found while the arrays were made."""
        notes = []
        if self.merging.differing:
            notes.append(
                "tensor-parallel ranks differed in parameters that they share, and their mean was used: "
                + ", ".join(sorted(self.merging.differing))
            )
        if self.merging.summed:
            notes.append(
                "under gpt-j-residual each tensor-parallel rank adds a bias of its own; their sum is one bias here, "
                "which learns at the rate of one of them: " + ", ".join(sorted(self.merging.summed))
            )
        return notes


def _rows(blocks: list[np.ndarray], shape: tuple[int, ...], axis: int) -> list[Piece]:
    """Return rows [vocab, embed], block by block, rank by rank, along our ``axis``."""
    pieces: list[Piece] = []
    first = 0
    for block in blocks:
        span = first, first + len(block)
        box = (span, (0, shape[1])) if axis == 0 else ((0, shape[0]), span)
        pieces.append((box, block if axis == 0 else block.T))
        first += len(block)
    return pieces


def _check_weight(key: Key, row: ParameterRow, parts: list[np.ndarray], weight: Tensor) -> None:
    """Check that the weight is the rounded master.

    Raises:
        ConversionError: The weight is another one: the checkpoint is inconsistent.
    """
    if [tensor for tensor, _, _ in row.parts] == [weight]:
        return  # without ZeRO and in float32 there is one of them
    position = 0
    for part in parts:
        for start in range(0, len(part), _COMPARED):
            master = part[start : start + _COMPARED]
            if not rounded_to(master, weight.stretch(position, position + len(master))):
                raise ConversionError(
                    f"{key[0]}.{key[1]}: the weight is not the rounded master: one of the files is of another state"
                )
            position += len(master)
