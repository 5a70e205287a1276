"""DeepSpeed's optimizer files: fp32 masters and moments, cut over ranks.

The ranks are the data-parallel ones.

A parameter group is one row: its parameters end to end in the order of ``param_shapes``, zeros at the end, cut into
equal parts, one a rank. A parameter may span ranks, and the zeros may fill the last ranks altogether. Which class wrote
a file is decided by its keys.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from midstream_engine.interop.calls import Record, Tensor
from midstream_engine.interop.errors import ConversionError
from midstream_engine.interop.foreign_values import TorchState, TorchValue

LEGACY = "DeeperSpeed 1.0"
_SUB_PARTITIONS = "local_sub_partitions_of_fp32_groups"
KINDS = ("fp32", "exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class ParameterRow:
    """Numbers [start, stop) of consecutive flat tensors, to shape as one parameter."""

    parts: tuple[tuple[Tensor, int, int], ...]
    shape: tuple[int, ...]

    def load(self) -> list[np.ndarray]:
        """Read the row's numbers from the disk.

        The result is a flat array for each tensor that has a part of the row, in order.
        """
        return [tensor.stretch(start, stop) for tensor, start, stop in self.parts]

    def read(self) -> np.ndarray:
        """The parameter."""
        return self.joined(self.load())

    def joined(self, loaded: list[np.ndarray]) -> np.ndarray:
        """The parameter of what was loaded; a view where one tensor holds all of it."""
        row = loaded[0] if len(loaded) == 1 else np.concatenate(loaded) if loaded else np.empty(0, np.float32)
        return row.reshape(self.shape)

    def blocks(self, loaded: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        """Yield the parameter's rows [n, ...], one block after the other.

        Blocks are views, but for a row that two tensors share.
        """
        width = math.prod(self.shape[1:])
        rest = np.empty(0, np.float32)
        for flat in loaded:
            if rest.size:
                missing = min(width - rest.size, flat.size)
                rest, flat = np.concatenate([rest, flat[:missing]]), flat[missing:]
                if rest.size == width:
                    yield rest.reshape(1, *self.shape[1:])
                    rest = rest[:0]
            count = flat.size // width
            if count:
                yield flat[: count * width].reshape(count, *self.shape[1:])
            if flat.size > count * width:
                rest = flat[count * width :]


@dataclass
class Masters:
    """Optimizer state of one model-parallel rank, by parameter name and kind."""

    rows: dict[str, dict[str, ParameterRow]] = field(default_factory=dict)
    steps: set[int] = field(default_factory=set)
    groups: list[dict[str, TorchValue]] = field(default_factory=list)  # hyper-parameters
    decays: dict[str, float] = field(default_factory=dict)
    clipping: set[float] = field(default_factory=set)  # the norm that DeepSpeed clipped gradients to; 0: it did not
    writer: str = ""


def from_partitions(name: str, model: TorchState, files: Sequence[TorchState]) -> Masters:
    """Read one model-parallel rank's state from its optimizer files.

    ``files``: those of its data-parallel ranks, in order.

    ``name``: for messages.

    Raises:
        ConversionError: The layout is unknown.
    """
    states = [_state(name, file) for file in files]
    first = states[0]
    base = _checked(name, first)
    if not isinstance(base, Mapping) or "single_partition_of_fp32_groups" not in first:
        raise ConversionError(
            f"{name}: the optimizer's layout is not known; it has {', '.join(sorted(map(str, first)))}"
        )
    shapes = model.get("param_shapes")
    if not isinstance(shapes, list):
        raise ConversionError(
            f"{name}: param_shapes are missing, so it is not known which numbers are which parameter's"
        )
    masters = Masters(writer="BF16_Optimizer" if "zero_stage" not in first else "DeepSpeedZeroOptimizer")
    _note_clipping(masters, states)
    for group, named in enumerate(shapes):
        rows = {"fp32": [state["single_partition_of_fp32_groups"][group] for state in states]}
        for kind in KINDS[1:]:
            rows[kind] = [_moment(name, state, group, kind) for state in states]
        for kind, row in rows.items():
            _cut(name, masters, kind, named, row)
        for state in states:
            _check_slices(name, state, group, named, [_size(tensor) for tensor in rows["exp_avg"]], states.index(state))
            _note_group(masters, state["base_optimizer_state"], group, named)
    return masters


def is_legacy(file: TorchValue) -> bool:
    """Whether DeeperSpeed 1.0 (DeepSpeed 0.3.15) wrote an optimizer file."""
    state = file.get("optimizer_state_dict") if isinstance(file, Mapping) else None
    return isinstance(state, Mapping) and _SUB_PARTITIONS in state


def from_sub_partitions(
    name: str, files: Sequence[TorchState], order: Sequence[Mapping[str, tuple[int, ...]]]
) -> Masters:
    """Read DeeperSpeed 1.0's ZeRO 1.

    The code follows its description and is not tested on a real file.

    A group's numbers are divided into intervals, each of them over all ranks. ``order``: each group's parameters in the
    module's order, which no file has; comparing masters with weights finds a wrong order.
    """
    states = [_state(name, file) for file in files]
    masters = Masters(writer=LEGACY)
    _note_clipping(masters, states)
    for state in states:
        base = _checked(name, state)
        if not isinstance(base, Mapping) or not {"state", "param_groups"} <= base.keys():
            raise ConversionError(f"{name}: the optimizer's layout is not known (sub-partitions without their moments)")
        if len(state[_SUB_PARTITIONS]) != len(order) or len(base["param_groups"]) != len(order):
            raise ConversionError(f"{name}: {len(state[_SUB_PARTITIONS])} groups where {len(order)} were expected")
    for group, named in enumerate(order):
        held = [_sub_partitions(name, state, group) for state in states]
        if len({len(parts) for parts in held}) != 1:
            raise ConversionError(f"{name}: the ranks have their group {group} in different numbers of intervals")
        for kind in KINDS:
            _cut(
                name,
                masters,
                kind,
                named,
                [fragment[kind] for interval in zip(*held, strict=True) for fragment in interval],
            )
        for fragment in held[0]:
            _note_step(masters, fragment.get("step"))
        _note_group(masters, states[0]["base_optimizer_state"], group, named)
    return masters


def _sub_partitions(name: str, state: TorchState, group: int) -> list[dict[str, TorchValue]]:
    """A rank's parts of a group, one an interval: masters and moments."""
    base, parts = state["base_optimizer_state"], state[_SUB_PARTITIONS][group]
    numbers = base["param_groups"][group]["params"]
    moments = [base["state"].get(number) for number in numbers]
    if len(numbers) != len(parts) or not all(isinstance(moment, Mapping) and "exp_avg" in moment for moment in moments):
        raise ConversionError(f"{name}: group {group} has {len(parts)} sub-partitions, but not the moments of each")
    return [{**moment, "fp32": masters} for moment, masters in zip(moments, parts, strict=True)]


def _checked(name: str, state: TorchState) -> TorchValue:
    """The inner optimizer's state, where stage and kind are read here."""
    stage = _number(state.get("zero_stage", 1))
    if stage >= 2:
        raise ConversionError(f"{name}: ZeRO stage {stage} is not read; save it once under stage 1 or 0")
    base = state.get("base_optimizer_state")
    if state.get("elastic_checkpoint") or isinstance(base, list):
        raise ConversionError(f"{name}: an elastic checkpoint (elastic_checkpoint: true) is not read")
    return base


def from_flat_groups(name: str, optimizer: TorchState, order: Sequence[Mapping[str, tuple[int, ...]]]) -> Masters:
    """Read FP16_Optimizer (ZeRO 0): ``fp32_groups_flat``, one row a group.

    ``order``: each group's parameters in order.
    """
    flats, inner = optimizer["fp32_groups_flat"], optimizer.get("optimizer_state_dict")
    if not isinstance(inner, Mapping) or not inner.get("state"):
        raise ConversionError(f"{name}: the optimizer's state is not in it (only the parameters are)")
    if len(flats) != len(order):
        raise ConversionError(f"{name}: {len(flats)} parameter groups where {len(order)} were expected")
    masters = Masters(writer="FP16_Optimizer")
    _note_clipping(masters, [optimizer])
    for group, named in enumerate(order):
        _cut(name, masters, "fp32", named, [flats[group]])
        for kind in KINDS[1:]:
            _cut(name, masters, kind, named, [inner["state"][group][kind]])
        _note_group(masters, inner, group, named)
    return masters


def from_parameters(
    name: str,
    optimizer: TorchState,
    order: Sequence[Mapping[str, tuple[int, ...]]],
    module: Mapping[str, Tensor],
) -> Masters:
    """Read a plain optimizer (float32, ZeRO 0), with a state for each parameter.

    The parameters themselves are the masters.
    """
    state, groups = optimizer.get("state"), optimizer.get("param_groups")
    if not isinstance(state, Mapping) or not isinstance(groups, list) or not state:
        raise ConversionError(
            f"{name}: the optimizer's layout is not known; it has {', '.join(sorted(map(str, optimizer)))}"
        )
    masters = Masters(writer="plain optimizer")
    for group, named in enumerate(order):
        numbers = groups[group]["params"] if group < len(groups) else []
        if len(numbers) != len(named):
            raise ConversionError(
                f"{name}: group {group} has {len(numbers)} parameters where {len(named)} were expected"
            )
        for number, (parameter, shape) in zip(numbers, named.items(), strict=True):
            held = state[number]
            tensors = {"fp32": module[parameter], **{kind: held[kind] for kind in KINDS[1:]}}
            for kind, tensor in tensors.items():
                _cut(name, masters, kind, {parameter: shape}, [tensor])
            _note_step(masters, held.get("step"))
            masters.decays[parameter] = float(groups[group].get("weight_decay", 0.0))
        masters.groups.append({key: value for key, value in groups[group].items() if key != "params"})
        _note_step(masters, groups[group].get("step"))
    return masters


def _state(name: str, file: TorchState) -> TorchState:
    state = file.get("optimizer_state_dict") if isinstance(file, Mapping) else None
    if not isinstance(state, Mapping):
        raise ConversionError(f"{name}: no optimizer_state_dict in it")
    if not state.get("base_optimizer_state"):
        raise ConversionError(f"{name}: the optimizer's state is not in it (only the parameters are)")
    return state


def _moment(name: str, state: TorchState, group: int, kind: str) -> Tensor:
    held = state["base_optimizer_state"].get("state", {}).get(group)
    tensor = held.get(kind) if isinstance(held, Mapping) else None
    if not isinstance(tensor, Tensor):
        raise ConversionError(f"{name}: group {group} has no {kind}: it was not trained with Adam, or not yet")
    return tensor


def _cut(name: str, masters: Masters, kind: str, named: Mapping[str, Sequence[int]], row: Sequence[TorchValue]) -> None:
    """Cut a row, stored in consecutive tensors, into parameters.

    The rest at its end has to be zeros.
    """
    ends = [0]
    for tensor in row:
        ends.append(ends[-1] + _size(tensor))
    place = 0
    for parameter, shape in named.items():
        size = math.prod(shape)
        parts = tuple(
            (tensor, max(place, begin) - begin, min(place + size, end) - begin)
            for tensor, begin, end in zip(row, ends, ends[1:], strict=False)
            if max(place, begin) < min(place + size, end)
        )
        if sum(stop - start for _, start, stop in parts) != size:
            raise ConversionError(f"{name}: {kind} ends before {parameter}: a rank's file is missing or misshapen")
        masters.rows.setdefault(parameter, {})[kind] = ParameterRow(parts, tuple(shape))
        place += size
    stretches = [
        tensor.stretch(max(place - begin, 0), end - begin)
        for tensor, begin, end in zip(row, ends, ends[1:], strict=False)
        if end > place
    ]
    if any(np.any(stretch) for stretch in stretches):
        raise ConversionError(f"{name}: {ends[-1] - place} numbers of {kind} are left over, and they are not padding")


def _check_slices(
    name: str, state: TorchState, group: int, named: Mapping[str, Sequence[int]], sizes: Sequence[int], rank: int
) -> None:
    """Check that DeepSpeed's own record of a rank's row agrees, where there is one.

    The record says which part of the row is which parameter's.
    """
    mappings = state.get("param_slice_mappings")
    if not isinstance(mappings, list) or group >= len(mappings):
        return
    begin = sum(sizes[:rank])
    end, place = begin + sizes[rank], 0
    places: dict[str, tuple[int, int]] = {}
    for parameter, shape in named.items():
        size = math.prod(shape)
        start, stop = max(place, begin), min(place + size, end)
        if start < stop:
            places[parameter] = (stop - start, start - begin)
        place += size
    fragments = {parameter: _fragment(value) for parameter, value in mappings[group].items()}
    if fragments != places:
        strange = sorted(key for key in fragments.keys() | places.keys() if fragments.get(key) != places.get(key))
        raise ConversionError(
            f"{name}: rank {rank} keeps {strange[0]} elsewhere than its shapes say; its order is not known"
        )


def _fragment(value: object) -> tuple[int, int]:
    held = value.state if isinstance(value, Record) else None
    if isinstance(held, Mapping) and {"numel", "start"} <= held.keys():
        return int(held["numel"]), int(held["start"])
    if isinstance(value, Record) and len(value.arguments) == 2:
        return int(value.arguments[0]), int(value.arguments[1])
    raise ConversionError("param_slice_mappings: not in a form that is known")


def _note_group(masters: Masters, base: TorchState, group: int, named: TorchState) -> None:
    groups = base.get("param_groups") or []
    held = base.get("state", {}).get(group, {})
    _note_step(masters, held.get("step") if isinstance(held, Mapping) else None)
    if group < len(groups):
        _note_step(masters, groups[group].get("step"))
        if len(masters.groups) <= group:
            masters.groups.append({key: value for key, value in groups[group].items() if key != "params"})
        for parameter in named:
            masters.decays[parameter] = float(groups[group].get("weight_decay", 0.0))


def _note_clipping(masters: Masters, states: Iterable[TorchState]) -> None:
    masters.clipping |= {
        float(state["clip_grad"]) for state in states if isinstance(state.get("clip_grad"), int | float)
    }


def _note_step(masters: Masters, step: TorchValue) -> None:
    if isinstance(step, Tensor):
        step = float(step.stretch(0, 1)[0])
    if step is not None:
        masters.steps.add(int(step))


def _number(value: TorchValue) -> int:
    """A stage: a number, or the enumeration that DeepSpeed has for it."""
    if isinstance(value, Record):
        value = value.arguments[0]
    return int(value)


def _size(tensor: object) -> int:
    if not isinstance(tensor, Tensor):
        raise ConversionError("a row of the optimizer is no tensor")
    return tensor.size
