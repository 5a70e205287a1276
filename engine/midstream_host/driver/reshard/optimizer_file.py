"""One optimizer file of DeepSpeed, without its numbers.

Standard library only; Python 3.8.
"""

from __future__ import annotations

from typing import Dict, List, Optional, Set, Tuple

from midstream_core import pickle_tree
from midstream_core.format_error import FormatError
from midstream_core.pickle_tree import Value, items_of, pairs_of, value_of
from midstream_host.driver.reshard.segments import Archive, Segment
from midstream_host.formats import torch_tree
from midstream_host.formats.torch_tree import Tensor, tensor_of

FP32 = "fp32"
_SMALL = 4096  # bytes of a tensor that all ranks have alike


class OptimizerFile:
    """A rank's optimizer file, without its numbers.

    ``flats``: for each flat tensor, the tensors by kind: ``fp32`` (the masters) and the optimizer's own. ``stage``: of
    ZeRO; 0 for the optimizer of bf16, which does not say.
    """

    def __init__(self, archive: Archive) -> None:
        """Read it.

        Raises:
            FormatError: It has another layout than DeepSpeed's; the message has the file's name.
            OSError: It cannot be read.
        """
        self.archive = archive
        try:
            self.tree = pickle_tree.parse(archive.text("data.pkl"))
            self._read()
        except FormatError as error:
            message = str(error)
            raise FormatError(
                message if message.startswith(archive.name) else "{}: {}".format(archive.name, message)
            ) from None

    def _read(self) -> None:
        self.state = value_of(self.tree, "optimizer_state_dict")
        if pairs_of(self.state) is None:
            raise FormatError("it has no optimizer_state_dict")
        stage = number_of(value_of(self.state, "zero_stage"))
        self.stage = 0 if stage is None else stage
        sharded = self.stage >= 3
        self.base = value_of(self.state, "optimizer_state_dict" if sharded else "base_optimizer_state")
        if items_of(self.base) is not None:
            raise FormatError("it was saved with elastic_checkpoint, which DeepSpeed itself loads on another number")
        self.masters_key = "fp32_flat_groups" if sharded else "single_partition_of_fp32_groups"
        self.masters = items_of(value_of(self.state, self.masters_key))
        self.param_groups = items_of(value_of(self.base, "param_groups"))
        if self.masters is None or self.param_groups is None or pairs_of(value_of(self.base, "state")) is None:
            raise FormatError("its optimizer has another layout than that of ZeRO 1, 2, 3 or of bf16")
        numbers = [items_of(value_of(group, "params")) or [] for group in self.param_groups]
        self.group_of = [group for group, members in enumerate(numbers) for _ in members]
        identifiers = [number for members in numbers for number in members]
        if len(identifiers) != len(self.masters):
            raise FormatError("it has {} flat tensors, and its groups have {}".format(
                len(self.masters), len(identifiers)))  # fmt: skip
        self.flats: List[Dict[str, Tensor]] = []
        self.states: List[Value] = []
        for master, number in zip(self.masters, identifiers):
            self.states.append(value_of(value_of(self.base, "state"), number))
            self.flats.append(self._flat(master, self.states[-1]))

    def _flat(self, master: Value, state: Value) -> Dict[str, Tensor]:
        """Return the tensors that are divided over ranks, of one flat tensor."""
        tensor = tensor_of(master)
        if tensor is None or len(tensor.shape) != 1:
            raise FormatError("its masters are no flat tensors")
        tensors = {FP32: tensor}
        sizes: Set[Tuple[int, ...]] = set()
        for name, value in pairs_of(state) or []:
            held = tensor_of(value)
            if held is not None and held.shape not in ((), (1,)) and type(name) is str:
                tensors[name] = held
                sizes.add(held.shape)
            elif held is not None and held.shape == (1,) and name != "step":
                tensors[name] = held
        if len(sizes) > 1 or any(len(shape) != 1 for shape in sizes):
            raise FormatError("the optimizer's state {} is not divided as the masters are".format(
                ", ".join(sorted(name for name in tensors if name != FP32))))  # fmt: skip
        for tensor in tensors.values():
            self._check(tensor)
        return tensors

    def _check(self, tensor: Tensor) -> None:
        size = self.archive.size("data/" + tensor.storage)
        if not tensor.contiguous or size is None or (tensor.offset + tensor.length) * tensor.width > size:
            raise FormatError("data/{} is missing, or shorter than its tensor".format(tensor.storage))

    def segment(self, kind: str, flat: int, start: int, count: int) -> Segment:
        """Return where numbers of a flat tensor are.

        Raises FormatError where there are fewer.
        """
        tensor = self.flats[flat][kind]
        if start + count > tensor.length:
            raise FormatError("{}: {} of flat tensor {} has {} numbers, and {} belong there".format(
                self.archive.name, kind, flat, tensor.length, start + count))  # fmt: skip
        first, width = tensor.offset + start, tensor.width
        return Segment(self.archive, "data/" + tensor.storage, first * width, (first + count) * width)

    def difference(self, other: OptimizerFile) -> str:
        """Return where another rank's file differs in what all have alike, or nothing."""
        divided: Set[int] = set()
        for file in (self, other):
            divided.update(id(tensor.node) for tensors in file.flats for tensor in tensors.values())
            divided.update(id(value_of(file.state, key)) for key in ("group_paddings", "param_slice_mappings"))

        def same(value: Value, other_value: Value) -> Optional[bool]:
            if id(value) in divided or id(other_value) in divided:
                return id(value) in divided and id(other_value) in divided
            first, second = tensor_of(value), tensor_of(other_value)
            if first is None or second is None:
                return None
            return first.shape == second.shape and self.numbers(first) == other.numbers(second)

        return torch_tree.first_difference(self.tree, other.tree, same)

    def numbers(self, tensor: Tensor) -> bytes:
        """Return the bytes of a tensor that all ranks have alike.

        Raises FormatError: it is no small one.
        """
        size = tensor.length * tensor.width
        if size > _SMALL or not tensor.contiguous:
            raise FormatError("{}: it has a tensor of {} bytes that is not divided over ranks".format(
                self.archive.name, size))  # fmt: skip
        start = tensor.offset * tensor.width
        return b"".join(bytes(block) for block, _ in self.archive.blocks("data/" + tensor.storage, start, start + size))


def number_of(node: Value) -> Optional[int]:
    """Return a plain integer, or that of an enumeration; None for any other node."""
    if type(node) is pickle_tree.Made:
        node = (items_of(node.arguments) or [None])[0]
    return node if type(node) is int else None
