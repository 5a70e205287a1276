"""Files of a checkpoint for another number of processes.

Standard library only; Python 3.8.
"""

from __future__ import annotations

from typing import Callable, Dict, List, NamedTuple, Optional, Set, Tuple

from midstream_core import pickle_tree, pickle_writer
from midstream_core.format_error import FormatError
from midstream_core.pickle_tree import Items, Made, Pairs, Step, Value, items_of, pairs_of, set_value, value_of
from midstream_core.torch_writer import NewMember, text_member
from midstream_host.driver.reshard.checkpoint import ModelFile, ModelRank, StoredCheckpoint, optimizer_name
from midstream_host.driver.reshard.division import Division, Piece
from midstream_host.driver.reshard.optimizer_file import FP32, OptimizerFile
from midstream_host.driver.reshard.segments import Archive, Segment, copy_segments, joined, zeros
from midstream_host.formats import torch_tree
from midstream_host.formats.torch_tree import Tensor, tensor_of

_MARK = "#"  # after the name of a storage that was copied for another flat tensor


class NewFile(NamedTuple):
    """A file to write: its archive's folder and members."""

    name: str
    folder: str
    members: List[NewMember]

    @property
    def size(self) -> int:
        """Bytes of its members."""
        return sum(member.size for member in self.members)


def new_files(source: StoredCheckpoint, ranks: int) -> List[NewFile]:
    """Return the files that depend on the number of processes. Raises FormatError."""
    files: List[NewFile] = []
    for model_rank in source.parts:
        target = model_rank.target(ranks)
        files += [_optimizer_file(model_rank, target, rank) for rank in range(ranks)]
    for (rank, number), model in sorted(source.models.items()):
        divided = next((held for held in source.parts if model in held.models), None)
        if not source.sharded:
            files.append(_model_file(model, divided, ranks, 0))
        elif rank == 0:
            files += [
                _model_file(source.models[new % source.ranks, number], divided, ranks, new) for new in range(ranks)
            ]
    return files


def _optimizer_file(model_rank: ModelRank, target: Division, rank: int) -> NewFile:
    file = OptimizerFile(model_rank.first.archive)
    contents: Dict[str, List[Segment]] = {}
    masters, states = Items("list", []), Pairs([])
    for flat, group in enumerate(target.group_of):
        template = model_rank.division.group_of.index(group)
        mark = "{}{}".format(_MARK, flat)
        pair = torch_tree.cloned(Items("tuple", [file.masters[template], file.states[template]]), mark)  # pyright: ignore[reportOptionalSubscript]
        master, state = pair.items
        masters.items.append(master)
        if state is not None:
            states.pairs.append([flat, state])
        for kind in model_rank.kinds(group):
            tensor = tensor_of(master if kind == FP32 else value_of(state, kind))
            assert tensor is not None
            size = target.sizes[flat]
            if kind == FP32 and model_rank.lean():
                size -= target.padding(rank, flat, False)
            name = "{}/{}".format(flat, kind)
            torch_tree.make_flat(tensor, name, size)
            contents[name] = model_rank.content(kind, target, rank, flat, size)
    _set_groups(file, target, masters, states)
    _set_addresses(model_rank, file, target, rank)
    name = optimizer_name(model_rank.first.archive.name, rank)
    return NewFile(name, file.archive.folder, _members(file.archive, file.tree, contents))


def _set_groups(file: OptimizerFile, target: Division, masters: Items, states: Pairs) -> None:
    set_value(file.state, file.masters_key, masters)
    set_value(file.base, "state", states)
    for group, settings in enumerate(file.param_groups or []):
        members = [flat for flat, owner in enumerate(target.group_of) if owner == group]
        set_value(settings, "params", Items("list", list(members)))
    counts = value_of(file.state, "partition_count")
    if items_of(counts) is None:
        set_value(file.state, "partition_count", target.ranks)
    else:
        set_value(file.state, "partition_count", Items("list", [target.ranks] * len(items_of(counts) or [])))


def _set_addresses(model_rank: ModelRank, file: OptimizerFile, target: Division, rank: int) -> None:
    """Set the paddings, and which numbers of the rank's part are which parameter's."""
    if value_of(file.state, "group_paddings") is not None:
        paddings = [target.padding(rank, flat, not model_rank.lean()) for flat in range(len(target.sizes))]
        set_value(file.state, "group_paddings", Items("list", list(paddings)))
    if items_of(value_of(file.state, "param_slice_mappings")) is None:
        return
    sample = _address(model_rank)
    mappings: List[Value] = []
    for flat, group in enumerate(target.group_of):
        held = {parameter.name: piece for parameter, piece in target.of_rank(rank, flat)}
        names = [parameter.name for parameter in model_rank.order[group] if parameter.name in held]
        mappings.append(torch_tree.ordered_dict([[name, _new_address(sample, held[name])] for name in names]))
    set_value(file.state, "param_slice_mappings", Items("list", mappings))


def _address(model_rank: ModelRank) -> Made:
    """Return an address of a parameter, as this release of DeepSpeed writes it.

    Raises FormatError.
    """
    for file in model_rank.optimizers:
        for mapping in items_of(value_of(file.state, "param_slice_mappings")) or []:
            for _, address in pairs_of(mapping) or []:
                if type(address) is Made and (_fields(address) == {"numel", "start"} or _by_position(address)):
                    return address
    raise FormatError("{}: its param_slice_mappings are in no form that is known".format(model_rank.first.archive.name))


def _fields(address: Made) -> Set[Value]:
    state = address.steps[-1].values[0] if address.steps else None
    return {name for name, _ in pairs_of(state) or []}


def _by_position(address: Made) -> bool:
    """Whether both numbers are arguments of the call, not a state."""
    return not address.steps and len(items_of(address.arguments) or []) == 2


def _new_address(sample: Made, piece: Piece) -> Made:
    made = Made(sample.opcode, sample.function, sample.arguments, sample.keywords)
    if _by_position(sample):
        made.arguments = Items("tuple", [piece.length, piece.start])
        return made
    values = {"numel": piece.length, "start": piece.start}
    order = [name for name, _ in pairs_of(sample.steps[-1].values[0]) or []]
    made.steps = [Step("BUILD", [Pairs([[name, values[name]] for name in order])])]
    return made


def _model_file(model: ModelFile, model_rank: Optional[ModelRank], ranks: int, rank: int) -> NewFile:
    """Return a model file with the number of processes.

    Under ZeRO 3 it has the rank's parts of frozen parameters.
    """
    tree = pickle_tree.parse(model.archive.text("data.pkl"))
    contents: Dict[str, List[Segment]] = {}
    set_value(tree, "dp_world_size", ranks)
    name = model.archive.name
    if model_rank is not None and (model_rank.sharded or model_rank.round_robin):
        _set_shapes(tree, model_rank, model_rank.target(ranks))
    if model_rank is not None and model_rank.sharded:
        name = optimizer_name(name, rank)
        if rank and pairs_of(value_of(tree, "shared_params")):  # that of rank 0, which alone names them
            set_value(tree, "shared_params", Pairs([]))
        contents = _frozen(tree, model_rank, ranks, rank)
    return NewFile(name, model.archive.folder, _members(model.archive, tree, contents))


def _set_shapes(tree: Value, model_rank: ModelRank, target: Division) -> None:
    """Set the order and the subgroups that the parameters have in the target."""
    shapes: Dict[Tuple[int, str], Value] = {}
    stored = items_of(value_of(tree, "param_shapes")) or []
    for group, named in zip(model_rank.division.group_of, stored):
        shapes.update({(group, name): shape for name, shape in pairs_of(named) or []})
    divided = [
        torch_tree.ordered_dict([[parameter.name, shapes[group, parameter.name]] for parameter in members])
        for group, members in zip(target.group_of, target.groups)
    ]
    set_value(tree, "param_shapes", Items("list", list(divided)))


def _frozen(tree: Value, model_rank: ModelRank, ranks: int, rank: int) -> Dict[str, List[Segment]]:
    """Divide the frozen parameters of ZeRO 3; return their contents.

    Raises FormatError.
    """
    contents: Dict[str, List[Segment]] = {}
    shapes = {name: torch_tree.shape_of(shape) for name, shape in pairs_of(value_of(tree, "frozen_param_shapes")) or []}
    for name, value in pairs_of(value_of(tree, "frozen_param_fragments")) or []:
        tensor, shape = tensor_of(value), shapes.get(name)
        if tensor is None or shape is None:
            raise FormatError("{}: the frozen parameter {} has no shape".format(
                model_rank.models[0].archive.name, str(name)[:80]))  # fmt: skip
        count = 1
        for size in shape:
            count *= size
        old, new = -(-count // model_rank.division.ranks), -(-count // ranks)
        begin, end = min(count, rank * new), min(count, (rank + 1) * new)
        segments: List[Segment] = []
        for place, model in enumerate(model_rank.models):
            fragment = tensor_of(value_of(value_of(model.tree, "frozen_param_fragments"), name))
            first, stop = max(begin, place * old), min(end, (place + 1) * old)
            if first < stop:
                segments.append(_fragment(model, name, fragment, first - place * old, stop - place * old))
        segments.append(zeros((new - (end - begin)) * tensor.width))
        storage = "frozen/{}".format(name)
        torch_tree.make_flat(tensor, storage, new)
        contents[storage] = joined(segments)
    return contents


def _fragment(model: ModelFile, name: str, tensor: Optional[Tensor], start: int, stop: int) -> Segment:
    size = model.archive.size("data/" + tensor.storage) if tensor is not None and tensor.contiguous else None
    if tensor is None or size is None or stop > tensor.length or (tensor.offset + stop) * tensor.width > size:
        raise FormatError("{}: its part of the frozen parameter {} is missing or too short".format(
            model.archive.name, str(name)[:80]))  # fmt: skip
    first = tensor.offset
    member = "data/" + tensor.storage
    return Segment(model.archive, member, (first + start) * tensor.width, (first + stop) * tensor.width)


def _members(archive: Archive, tree: Value, contents: Dict[str, List[Segment]]) -> List[NewMember]:
    """Return the members of an archive with another pickle.

    Storages without new contents stay what they are.
    """
    storages = torch_tree.name_storages(tree)
    members = [text_member("data.pkl", pickle_writer.dump(tree))]
    members += [_copied(name, [archive.complete(name)]) for name in archive.names() if not name.startswith("data")]
    for old, new in storages:
        segments = contents.get(old)
        complete = segments if segments is not None else [archive.complete("data/" + old.split(_MARK)[0])]
        members.append(_copied("data/" + new, complete))
    return members


def _copied(name: str, segments: List[Segment]) -> NewMember:
    def copy(write: Callable[[memoryview], object]) -> int:
        return copy_segments(segments, write)

    return NewMember(name, sum(segment.size for segment in segments), copy)
