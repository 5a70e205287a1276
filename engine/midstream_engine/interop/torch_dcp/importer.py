"""Import of distributed checkpoints of torch: the state of torchtitan's Llama."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial

import numpy as np

from midstream_core.dcp_metadata import MEGATRON, MEGATRON_TABLES
from midstream_core.learning_rate import rate_at, rate_parts, rate_settings
from midstream_core.precision import precision_of
from midstream_engine.checkpoint.array_names import LogicalArray
from midstream_engine.checkpoint.boxes import full_box
from midstream_engine.config.load import from_mapping
from midstream_engine.config.model import LlamaConfig
from midstream_engine.interop.decayed_arrays import decay_settings
from midstream_engine.interop.errors import ConversionError
from midstream_engine.interop.exact_numbers import common_dtype
from midstream_engine.interop.foreign_run import (
    ForeignRun,
    check_all_made,
    check_fit,
    constant,
    run_state,
    state_arrays,
)
from midstream_engine.interop.foreign_values import ForeignConfig, ForeignValue
from midstream_engine.interop.huggingface.names import TensorRule
from midstream_engine.interop.imported_array import ImportedArray, Piece
from midstream_engine.interop.torch_dcp.configuration import rate_factor, read_config, translate, warmup_of
from midstream_engine.interop.torch_dcp.names import (
    EXP_AVG,
    EXP_AVG_SQ,
    HEAD,
    PARTS,
    STATE,
    TABLE,
    rules_of,
    unfused,
)
from midstream_engine.interop.torch_dcp.optimizer import (
    StoredAdam,
    optimizer_name,
    parameters_of,
    read_adam,
    used_names,
)
from midstream_engine.interop.torch_dcp.reader import METADATA, DcpCheckpoint, find

_KINDS = {"model/": "", "optimizer/adam/mu/": f".{EXP_AVG}", "optimizer/adam/nu/": f".{EXP_AVG_SQ}"}
_LOADER = ("dataloader.", "data_loader.", "train_dataloader.")
_CLOSE = 1e-6  # relative: the engine's rates are float32


def open_torch_dcp(path: str, config_path: str | None = None) -> ForeignRun:
    """Open the checkpoint at ``path``: one, or the newest of a folder.

    Raises:
        ConversionError: An array is unused, missing, damaged or of another shape, or the configuration does not fit.
    """
    checkpoint = DcpCheckpoint(find(path))
    if any(name in checkpoint.tensors for name in MEGATRON_TABLES):
        raise ConversionError(f"{checkpoint.directory}: {MEGATRON}")
    if TABLE not in checkpoint.tensors:
        raise ConversionError(f"{checkpoint.directory}: has no {TABLE}: torchtitan's names of a Llama are read")
    parameters = parameters_of(checkpoint)
    described, titan = read_config(checkpoint.directory, config_path)
    notes = [f"{name} is not named by {METADATA}, and is left out" for name in checkpoint.others()]
    ranks = checkpoint.value("dataloader.world_size")
    adam = read_adam(checkpoint, parameters, notes)
    mapping = translate(described, ranks if isinstance(ranks, int) else None, notes) if titan else dict(described)
    rows = checkpoint.tensors[TABLE].shape[0]
    _complete(mapping, checkpoint, parameters, adam, rows)
    model = from_mapping(mapping).config.model
    if not isinstance(model, LlamaConfig):
        raise ConversionError(f"model.type: a Llama is read, not {type(model).__name__}")
    rules = rules_of(model)
    decays: dict[str, bool] = {}
    for rule in rules:
        stated = {adam.decays.get(optimizer_name(name, parameters), False) for name in _names(rule, model)}
        if len(stated) > 1:
            raise ConversionError(f"{rule.theirs}: decays in some layers alone, which has no counterpart")
        decays[rule.ours] = stated.pop()
    if adam.settings:
        mapping["optimizer"] |= decay_settings(decays)
    config = from_mapping(mapping).config
    _check_rates(mapping, adam, described if titan else None, notes)
    logical = state_arrays(config, rows)
    matched = _Matched(checkpoint, model, parameters)
    arrays = [matched.array(logical[prefix + rule.ours], rule, end) for prefix, end in _KINDS.items() for rule in rules]
    unused = set(checkpoint.names) - matched.used - used_names(checkpoint, parameters)
    positions = sorted(name for name in unused if name.startswith(_LOADER))
    matched.check(sorted(unused - set(positions)))
    if positions:
        notes.append(
            f"{', '.join(positions)}: the loader's position is not carried over: name the data, and from where"
        )
    arrays += [
        constant(logical["optimizer/adam/count"], adam.count),
        constant(logical["optimizer/schedule/count"], adam.count),
        constant(logical["key"], None),
    ]
    check_all_made(checkpoint.directory, arrays, logical)
    state = run_state(config, adam.count, adam.count, adam.count)
    provenance = {
        "time": time.time(), "converted_from": "torch-dcp", "source": checkpoint.directory, "vocab_size": rows,
    }  # fmt: skip
    return ForeignRun(
        "torch-dcp", adam.count, mapping, arrays, state, provenance, notes, checkpoint.stamp, list, _sound, None
    )


def _complete(
    mapping: dict[str, ForeignValue], checkpoint: DcpCheckpoint, parameters: list[str], adam: StoredAdam, rows: int
) -> None:
    """Add the checkpoint's settings of the optimizer, types and rows to ``mapping``.

    Raises:
        ConversionError: The configuration says something else.
    """
    optimizer = dict(mapping.get("optimizer") or {})
    for name, value in adam.settings.items():
        given = optimizer.setdefault(name, value)
        if given != value:
            raise ConversionError(f"optimizer.{name}: {given} in the configuration, and {value} in the checkpoint")
    if optimizer.setdefault("type", "adam") != "adam":
        raise ConversionError(f"optimizer.type: {optimizer['type']} in the configuration, and AdamW in the checkpoint")
    for name, kind in (("mu_dtype", EXP_AVG), ("nu_dtype", EXP_AVG_SQ)):
        moments = (f"{STATE}{parameter}.{kind}" for parameter in parameters)
        stored = {checkpoint.tensors[moment].dtype for moment in moments if moment in checkpoint.tensors}
        optimizer[name] = common_dtype(stored)
    weights = common_dtype({tensor.dtype for name, tensor in checkpoint.tensors.items() if not name.startswith(STATE)
                           and name.endswith(".weight")})  # fmt: skip
    trainer = dict(mapping.get("trainer") or {})
    trainer["mp"] = str(precision_of(trainer.get("mp")).with_parameters(weights))
    data: dict[str, ForeignValue] = {"tokenizer": f"ids:{rows}", "next_token": True, **(mapping.get("data") or {})}
    model: dict[str, ForeignValue] = {**(mapping.get("model") or {}), "pad_vocab_to_multiple": rows}
    mapping |= {"optimizer": optimizer, "trainer": trainer, "data": data, "model": model}


def _check_rates(mapping: ForeignConfig, adam: StoredAdam, described: ForeignConfig | None, notes: list[str]) -> None:
    """Compare the learning rates with those of the checkpoint and of torchtitan.

    Raises:
        ConversionError: They differ in another way than by torchtitan's warmup, which begins one update later.
    """
    total = int(mapping["trainer"]["num_train_steps"])
    parts = rate_parts(rate_settings(mapping["optimizer"]), total)
    peak, warmup = float(mapping["optimizer"]["learning_rate"]), 0
    theirs = partial(rate_at, parts)
    if described is not None:
        factor, warmup = rate_factor(described), warmup_of(described)
        theirs = lambda count: peak * factor(count)  # noqa: E731
    if adam.rate is not None and adam.count < total and not _close(theirs(adam.count), adam.rate):
        raise ConversionError(
            f"the learning rate of the next update is {adam.rate:.9g} in the checkpoint, and {theirs(adam.count):.9g} "
            "by the configuration (hint: --config names that of the run)"
        )
    differing = [count for count in range(adam.count, total) if not _close(theirs(count), rate_at(parts, count))]
    if not differing:
        return
    first, last = differing[0], differing[-1]
    stated = f"{rate_at(parts, first):.9g} here at update {first}, and {theirs(first):.9g} in torchtitan"
    if last >= warmup:
        raise ConversionError(f"the learning rate is {stated}")
    notes.append(f"lr_scheduler.warmup_steps: the warmup here is one update behind until update {warmup}: {stated}")


def _close(rate: float, other: float) -> bool:
    return abs(rate - other) <= _CLOSE * max(abs(rate), abs(other))


def _names(rule: TensorRule, model: LlamaConfig) -> list[str]:
    return [rule.theirs.format(layer) for layer in range(model.num_layers if rule.stacked else 1)]


@dataclass
class _Matched:
    """Sources of our arrays in a checkpoint, and what does not fit."""

    checkpoint: DcpCheckpoint
    model: LlamaConfig
    parameters: list[str]

    def __post_init__(self) -> None:
        self.used: set[str] = set()
        self._missing: list[str] = []
        self._misshapen: list[str] = []
        if self.model.tie_word_embeddings:
            self._check_tied()

    def array(self, array: LogicalArray, rule: TensorRule, end: str) -> ImportedArray:
        """Return our array with its source: a tensor of each layer.

        ``end``: of the moments' names; empty: the weights.
        """
        inner = array.shape[1:] if rule.stacked else array.shape
        pick: int | None = None
        sources: list[str] = []
        for name in _names(rule, self.model):
            held = optimizer_name(name, self.parameters) if end else name
            if self.model.tie_word_embeddings and end and name == TABLE and TABLE not in self.parameters:
                held = HEAD
            pick = None if held in (name, HEAD) else [name.endswith(end) for end in PARTS].index(True)
            sources.append(f"{STATE}{held}{end}" if end else held)
            self._check(sources[-1], rule.form.shape(inner) if pick is None else None)
        pieces = partial(self._pieces, rule, array.shape, pick)
        source = None if pick is None else ("joined", end)
        planes = array.shape[0] if rule.stacked else 1

        def read(plane: int) -> np.ndarray:
            return self.checkpoint.read(sources[plane])

        return ImportedArray(array.name, array.axes, array.shape, array.dtype, pieces, read, planes, source)

    def check(self, unused: list[str]) -> None:
        """Raise ConversionError where tensors are left over, missing or misshapen."""
        check_fit(self.checkpoint.directory, unused=unused, missing=self._missing, misshapen=self._misshapen)

    def _check(self, name: str, shape: tuple[int, ...] | None) -> None:
        self.used.add(name)
        stored = self.checkpoint.tensors.get(name)
        if stored is None:
            self._missing.append(name)
        elif stored.shape != (self._joined if shape is None else shape):
            self._misshapen.append(f"{name} {stored.shape}")

    @property
    def _joined(self) -> tuple[int, int]:
        model = self.model
        return (model.num_heads + 2 * model.num_kv_heads) * model.head_size, model.hidden_dim

    def _check_tied(self) -> None:
        """Raise ConversionError where a head is stored that is not the embedding."""
        self.used.add(HEAD)
        if HEAD in self.checkpoint.tensors and not np.array_equal(
            self.checkpoint.read(HEAD), self.checkpoint.read(TABLE)
        ):
            raise ConversionError(f"{self.checkpoint.directory}: {HEAD} and {TABLE} differ, and the model ties them")

    def _pieces(
        self, rule: TensorRule, shape: tuple[int, ...], pick: int | None, plane: int, read: np.ndarray
    ) -> list[Piece]:
        inner = shape[1:] if rule.stacked else shape
        theirs = read if pick is None else unfused(read, self.model.num_kv_heads, self.model.head_size)[pick]
        ours = rule.form.ours(theirs, inner)
        return [(((plane, plane + 1), *full_box(inner)), ours[None]) if rule.stacked else (full_box(shape), ours)]


def _sound() -> None:
    """Do nothing: every part is compared with its CRC when it is read."""
