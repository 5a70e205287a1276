"""Reader of NeoX checkpoints: parameters, masters and moments, not yet in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from midstream_core.json_types import JsonObject
from midstream_engine.interop.archive import TorchFile
from midstream_engine.interop.calls import Tensor
from midstream_engine.interop.errors import ConversionError
from midstream_engine.interop.foreign_values import TorchState, TorchValue
from midstream_engine.interop.neox import partitions
from midstream_engine.interop.neox.directory import Files
from midstream_engine.interop.neox.partitions import Masters
from midstream_engine.interop.neox.tensors import CONSTANTS, Key, Parameter, key_of


@dataclass
class Read:
    """Contents of the files.

    ``state``: the fields of the first rank that are the same in all.
    """

    files: Files
    state: dict[str, TorchValue]
    parameters: dict[Key, Parameter] = field(default_factory=dict)
    steps: set[int] = field(default_factory=set)
    groups: list[dict[str, TorchValue]] = field(default_factory=list)
    decays: dict[Key, float] = field(default_factory=dict)
    clips: set[float] = field(default_factory=set)
    writer: str = ""
    opened: list[TorchFile] = field(default_factory=list)

    @property
    def iteration(self) -> int:
        """Updates that NeoX has done, skipped ones included."""
        for name in ("iteration", "total_iters", "global_steps"):
            if isinstance(self.state.get(name), int):
                return int(self.state[name])
        raise ConversionError(f"{self.files.directory}: has no number of iterations")

    @property
    def clipping(self) -> float | None:
        """Return the norm to which DeepSpeed clipped gradients.

        The norm is 0 if DeepSpeed did not clip gradients, None if there is no record.

        Raises:
            ConversionError: The records differ.
        """
        config = self.state.get("ds_config")
        if not self.clips and isinstance(config, Mapping):
            return float(config.get("gradient_clipping") or 0.0)
        if len(self.clips) > 1:
            raise ConversionError(
                f"{self.files.directory}: gradients were clipped to {sorted(self.clips)} on its ranks"
            )
        return next(iter(self.clips), None)

    @property
    def skipped(self) -> int:
        """Updates that were skipped for an overflow in fp16."""
        return int(self.state.get("skipped_steps") or 0)

    def verify(self) -> None:
        """Check what was read.

        Raises:
            ConversionError: A file is damaged.
        """
        for file in self.opened:
            file.verify()


def read(files: Files) -> Read:
    """Read the structure of a checkpoint.

    Raises:
        ConversionError: Something is damaged, missing, inconsistent or unknown.
    """
    models = {rank: TorchFile(path) for rank, path in sorted(files.models.items())}
    states = {rank: _mapping(file) for rank, file in models.items()}
    run = Read(files, {key: value for key, value in states[0].items() if key not in ("module", "optimizer")})
    run.opened += models.values()
    names: dict[int, dict[str, Tensor]] = {}
    for rank, state in states.items():
        tensor_rank = rank % files.tensor
        weights = _weights(run, state, rank)
        names[rank] = weights
        for name, weight in weights.items():
            _add_weight(run, name, tensor_rank, weight)
    _add_optimizers(run, states, names)
    incomplete = [key for key, parameter in run.parameters.items() if set(parameter.rows) != set(parameter.weights)]
    if incomplete:
        raise ConversionError(f"{files.directory}: no optimizer state for {_listed(incomplete)}")
    updates = run.iteration - run.skipped
    # FP16_Optimizer makes one empty update before the first, to allocate its moments, and Adam counts it.
    counts = [{updates}, {updates + 1}] if run.writer == "FP16_Optimizer" else [{updates}]
    if run.steps and run.steps not in counts:
        raise ConversionError(
            f"{files.directory}: Adam has counted {sorted(run.steps)} updates, but {run.iteration} iterations with "
            f"{run.skipped} skipped make {updates}"
        )
    return run


def _mapping(file: TorchFile) -> dict[str, TorchValue]:
    if not isinstance(file.value, dict):
        raise ConversionError(f"{file.path}: no training state: it is a {type(file.value).__name__}")
    return file.value


def _weights(run: Read, state: TorchState, rank: int) -> dict[str, Tensor]:
    """Return a model-parallel rank's parameters by optimizer name, in module order."""
    files = run.files
    if not files.pipeline:
        module = state.get("module")
        if not isinstance(module, dict):
            raise ConversionError(f"{files.models[rank]}: holds no module, and there are no layer files")
        return {name: tensor for name, tensor in module.items() if _counts(name, tensor)}
    weights: dict[str, Tensor] = {}
    tensor_rank, stage = rank % files.tensor, rank // files.tensor
    mine = _stage_names(state)
    for (layer, other), path in sorted(files.layers.items()):
        if other != tensor_rank:
            continue
        if mine is None and len(files.models) // files.tensor > 1:
            raise ConversionError(
                f"{files.models[rank]}: which layers stage {stage} has is not in it (no param_shapes)"
            )
        if mine is not None and not any(key[0] == layer for key in mine):
            continue
        file = TorchFile(path)
        run.opened.append(file)
        for name, tensor in _mapping(file).items():
            if _counts(name, tensor) and (mine is None or (layer, name) in mine):
                weights[f"{layer}.{name}" if mine is None else mine[layer, name]] = tensor
    return weights


def _stage_names(state: TorchState) -> dict[Key, str] | None:
    """Return a pipeline stage's parameter names; None if only their order is known.

    The order is that in the files.
    """
    shapes = state.get("param_shapes")
    if not isinstance(shapes, list):
        return None
    return {key_of(name): name for group in shapes for name in group}


def _counts(name: str, value: object) -> bool:
    return isinstance(value, Tensor) and not CONSTANTS.fullmatch(name)


def _add_weight(state: Read, name: str, rank: int, weight: Tensor) -> None:
    parameter = state.parameters.setdefault(key_of(name), Parameter())
    before = parameter.weights.get(rank)
    if before is not None and not np.array_equal(before.read(), weight.read()):  # tied: on the first stage and the last
        raise ConversionError(f"{state.files.directory}: {name} is there twice, and the two differ")
    parameter.weights[rank] = weight


def _add_optimizers(run: Read, states: Mapping[int, JsonObject], names: Mapping[int, dict[str, Tensor]]) -> None:
    files = run.files
    for rank, state in states.items():
        masters = _masters(run, rank, state, names[rank])
        run.steps |= masters.steps
        run.clips |= masters.clipping
        run.groups = run.groups or masters.groups
        run.writer = masters.writer
        for name, rows in masters.rows.items():
            key = key_of(name)
            if key not in run.parameters:
                raise ConversionError(f"{files.directory}: the optimizer has {name}, which the model has not")
            weight = run.parameters[key].weights.get(rank % files.tensor)
            if weight is None or weight.shape != rows["fp32"].shape:
                raise ConversionError(
                    f"{files.directory}: {name} has shape {weight.shape if weight else None} in the model and "
                    f"{rows['fp32'].shape} in the optimizer"
                )
            parameter = run.parameters[key]
            rows_of_rank = parameter.twins if rank % files.tensor in parameter.rows else parameter.rows
            rows_of_rank[rank % files.tensor] = rows
            run.decays[key] = masters.decays.get(name, 0.0)


def _masters(run: Read, rank: int, state: TorchState, weights: Mapping[str, Tensor]) -> Masters:
    files = run.files
    mine = [files.optimizers[key] for key in sorted(files.optimizers) if key[0] == rank]
    if mine:
        opened = [TorchFile(path) for path in mine]
        run.opened += opened
        values = [_mapping(file) for file in opened]
        if partitions.is_legacy(values[0]):
            groups = len(values[0]["optimizer_state_dict"].get("base_optimizer_state", {}).get("param_groups", []))
            return partitions.from_sub_partitions(mine[0], values, _order(weights, groups))
        return partitions.from_partitions(mine[0], state, values)
    optimizer = state.get("optimizer")
    if not isinstance(optimizer, dict):
        raise ConversionError(
            f"{files.models[rank]}: the checkpoint has no optimizer state (hint: for a fresh optimizer, export the "
            "weights to Hugging Face's format and convert those)"
        )
    order = _order(weights, len(optimizer.get("fp32_groups_flat") or optimizer.get("param_groups") or []))
    if "fp32_groups_flat" in optimizer:
        return partitions.from_flat_groups(files.models[rank], optimizer, order)
    return partitions.from_parameters(files.models[rank], optimizer, order, weights)


def _order(weights: Mapping[str, Tensor], groups: int) -> list[dict[str, tuple[int, ...]]]:
    """Return the order of parameters without ZeRO, which stores no names.

    Groups are the parameters that decay and those that do not (norms, biases), in the module's order; one group if none
    decays.
    """
    if groups == 1:
        return [{name: weight.shape for name, weight in weights.items()}]
    plain = {name: weight.shape for name, weight in weights.items() if name.endswith(".bias") or "norm." in name}
    decayed = {name: weight.shape for name, weight in weights.items() if name not in plain}
    return [decayed, plain]


def _listed(keys: list[Key]) -> str:
    shown = [f"{layer}.{name}" for layer, name in sorted(keys)]
    return ", ".join(shown[:8]) + (f" and {len(shown) - 8} more" if len(shown) > 8 else "")
