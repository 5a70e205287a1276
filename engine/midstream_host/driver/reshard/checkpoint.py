"""A checkpoint of DeepSpeed, read to divide it over another number of processes.

Standard library only; Python 3.8.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import os
import posixpath
import re
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from midstream_core import pickle_tree
from midstream_core.format_error import FormatError
from midstream_core.pickle_tree import Value, items_of, pairs_of, value_of
from midstream_host.driver.checkpoints.checkpoint import IncompleteError
from midstream_host.driver.checkpoints.checkpoint_tree import CheckpointTree
from midstream_host.driver.checkpoints.deepspeed import check_tag
from midstream_host.driver.reshard.division import (
    SUBGROUP_SIZE,
    Division,
    Parameter,
    round_robin,
    rows,
    shards,
    subgroups,
    undo_round_robin,
)
from midstream_host.driver.reshard.optimizer_file import FP32, OptimizerFile
from midstream_host.driver.reshard.segments import Archive, Segment, compared_blocks, hashed_blocks, joined, zeros
from midstream_host.formats.torch_tree import shape_of

_MODEL = re.compile(r"mp_rank_(\d{1,6})_model_states\.pt")
_SHARD = re.compile(r"zero_pp_rank_(\d{1,6})_mp_rank_(\d{1,6})_model_states\.pt")
_OPTIMIZER = re.compile(r"(?:bf16_|fp16_)?zero_pp_rank_(\d{1,6})_mp_rank_(\d{1,6})_?optim_states\.pt")
_OTHERS = "the numbers of {} that were written are not those that were read (hint: check the disk)"
_FOREIGN = (
    (re.compile(r"(?:layer_\d+_)?expert_.*|expp_rank_.*"), "experts are divided over processes in another way"),
    (re.compile(r"zero/.*"), "it was written by ds_to_universal, which is for any number of processes"),
    (re.compile(r"offloaded_tensors/.*"), "the optimizer is in files of NVMe offload, for each process"),
)


class ModelFile(NamedTuple):
    """A file with a rank's model, and its pickle's tree."""

    archive: Archive
    tree: Value

    @classmethod
    def read(cls, path: str) -> ModelFile:
        """Read it. Raises FormatError and OSError."""
        archive = Archive(path)
        try:
            return cls(archive, pickle_tree.parse(archive.text("data.pkl")))
        except FormatError as error:
            message = str(error)
            shown = message if message.startswith(archive.name) else "{}: {}".format(archive.name, message)
            raise FormatError(shown) from None

    def setting(self, name: str) -> Value:
        """Return a stored setting of ``zero_optimization``; None where there is none."""
        return value_of(value_of(value_of(self.tree, "ds_config"), "zero_optimization"), name)

    def groups(self) -> List[List[Parameter]]:
        """Return the parameters of each flat tensor. Raises FormatError."""
        groups: List[List[Parameter]] = []
        for group in items_of(value_of(self.tree, "param_shapes")) or []:
            members: List[Parameter] = []
            for name, shape in pairs_of(group) or []:
                sizes = shape_of(shape)
                if type(name) is not str or sizes is None:
                    raise FormatError("{}: its param_shapes are in no form that is known".format(self.archive.name))
                count = 1
                for size in sizes:
                    count *= size
                members.append(Parameter(name, count))
            if len({member.name for member in members}) != len(members):
                raise FormatError("{}: a parameter is twice in a group".format(self.archive.name))
            groups.append(members)
        if not groups:
            raise FormatError("{}: its param_shapes are missing, so it is not known which numbers are which "
                              "parameter's".format(self.archive.name))  # fmt: skip
        return groups


class ModelRank:
    """Files of the data-parallel ranks of one model-parallel rank.

    ``models``: its model files, one for each rank under ZeRO 3, else one. ``order``: parameters of each group of the
    optimizer, in its own order.
    """

    def __init__(self, models: List[ModelFile], optimizers: List[OptimizerFile]) -> None:
        """Find how it is divided. Raises FormatError: not as DeepSpeed divides."""
        self.models, self.optimizers = models, optimizers
        self.first = optimizers[0]
        self.sharded, ranks = self.first.stage >= 3, len(optimizers)
        groups = models[0].groups()
        self._check_alike(groups)
        self.paddings = self._paddings(groups)
        if self.sharded:
            self.round_robin = False
            self.division = shards(groups, self.first.group_of, ranks)
        else:
            self.division = rows(groups, ranks, self.paddings)
            self.round_robin = self._is_round_robin(groups)
        self.order = self._order(groups, ranks)
        self._check_sizes()

    def target(self, ranks: int) -> Division:
        """Return how DeepSpeed divides it over ``ranks``. Raises FormatError."""
        if self.sharded:
            size = self.models[0].setting("sub_group_size")
            if size is None or type(size) not in (int, float):
                size = SUBGROUP_SIZE
            parts = [subgroups(group, len(self.optimizers), int(size)) for group in self.order]
            if [subgroup for group in parts for subgroup in group] != self.division.groups:
                raise FormatError("{}: its subgroups are not those of sub_group_size {}".format(
                    self.first.archive.name, int(size)))  # fmt: skip
            parts = [subgroups(group, ranks, int(size)) for group in self.order]
            group_of = [place for place, group in enumerate(parts) for _ in group]
            return shards([subgroup for group in parts for subgroup in group], group_of, ranks)
        if self.round_robin and any(any(group) for group in self.paddings):
            raise FormatError("round_robin_gradients together with parameter_alignment is not supported")
        groups = [round_robin(group, ranks) if self.round_robin else group for group in self.order]
        return rows(groups, ranks, self.paddings)

    def content(self, kind: str, target: Division, rank: int, flat: int, size: int) -> List[Segment]:
        """Return what a rank's flat tensor of another division has, of ``size`` numbers."""
        group, width = target.group_of[flat], self.width(kind, target.group_of[flat])
        segments: List[Segment] = []
        position = 0
        for parameter, piece in target.of_rank(rank, flat):
            segments.append(zeros((piece.start - position) * width))
            segments += self.numbers(kind, group, parameter, piece.first, piece.first + piece.length)
            position = piece.start + piece.length
        segments.append(zeros((size - position) * width))
        return joined(segments)

    def numbers(self, kind: str, group: int, parameter: Parameter, first: int, stop: int) -> List[Segment]:
        """Return where numbers of a parameter are. Raises FormatError."""
        return [
            self.optimizers[piece.rank].segment(
                kind, piece.flat, piece.start + max(0, first - piece.first),
                min(stop, piece.first + piece.length) - max(first, piece.first))
            for piece in self.division.pieces(group, parameter.name)
            if piece.first < stop and first < piece.first + piece.length
        ]  # fmt: skip

    def width(self, kind: str, group: int) -> int:
        """Bytes of a number."""
        return self.first.flats[self.division.group_of.index(group)][kind].width

    def kinds(self, group: int) -> List[str]:
        """Return the kinds of a group's flat tensors: the masters first."""
        return list(self.first.flats[self.division.group_of.index(group)])

    def lean(self) -> bool:
        """Whether masters are stored without the padding at their end, as ZeRO 1 and 2 do."""
        return self.first.stage in (1, 2)

    def _check_alike(self, groups: Sequence[Sequence[Parameter]]) -> None:
        if len(groups) != len(self.first.flats):
            raise FormatError("{}: {} flat tensors, and param_shapes has {}".format(
                self.first.archive.name, len(self.first.flats), len(groups)))  # fmt: skip
        counts = value_of(self.first.state, "partition_count")
        for count in items_of(counts) or [counts]:
            if type(count) is int and count != len(self.optimizers):
                raise FormatError("{}: a group has {} of {} ranks: experts and MiCS are not supported".format(
                    self.first.archive.name, count, len(self.optimizers)))  # fmt: skip
        if value_of(self.first.state, "ds_zero_partition_groups") is not None:
            raise FormatError("{}: experts are divided in another way".format(self.first.archive.name))
        for file in self.optimizers[1:]:
            place = self.first.difference(file)
            if place:
                raise FormatError("{} and {} differ in {}, which all ranks of one checkpoint have alike".format(
                    self.first.archive.name, file.archive.name, place[:200]))  # fmt: skip

    def _paddings(self, groups: Sequence[Sequence[Parameter]]) -> List[List[int]]:
        stored = items_of(value_of(self.first.state, "param_alignment_paddings"))
        if stored is None:
            return [[0] * len(group) for group in groups]
        paddings = [items_of(group) or [] for group in stored]
        if [len(group) for group in paddings] != [len(group) for group in groups] or any(
            type(size) is not int or not 0 <= size < 64 for group in paddings for size in group
        ):
            raise FormatError("{}: its param_alignment_paddings make no sense".format(self.first.archive.name))
        return paddings

    def _is_round_robin(self, groups: Sequence[Sequence[Parameter]]) -> bool:
        """Return whether the order of the parameters depends on the number of ranks."""
        setting = self.models[0].setting("round_robin_gradients")
        if type(setting) is bool:
            return setting and self.first.stage > 0
        for flat, group in enumerate(groups):
            names: Dict[str, None] = {}
            for file in self.optimizers:
                mappings = items_of(value_of(file.state, "param_slice_mappings")) or []
                for name, _ in pairs_of(mappings[flat]) or [] if flat < len(mappings) else []:
                    names.setdefault(name)
            if names and list(names) != [parameter.name for parameter in group]:
                return True
        return False

    def _order(self, groups: List[List[Parameter]], ranks: int) -> List[List[Parameter]]:
        if self.sharded:
            order: List[List[Parameter]] = [[] for _ in self.first.param_groups or []]
            for group, members in zip(self.first.group_of, groups):
                order[group] += members
            return order
        return [undo_round_robin(group, ranks) if self.round_robin else group for group in groups]

    def _check_sizes(self) -> None:
        """Raise FormatError unless each rank's tensors are as long as the division says."""
        for rank, file in enumerate(self.optimizers):
            for flat, tensors in enumerate(file.flats):
                size = self.division.sizes[flat]
                lean = size - self.division.padding(rank, flat, False)
                for kind, tensor in tensors.items():
                    if tensor.length != size and not (kind == FP32 and tensor.length == lean and self.lean()):
                        raise FormatError("{}: {} of flat tensor {} has {} numbers where DeepSpeed puts {}".format(
                            file.archive.name, kind, flat, tensor.length, size))  # fmt: skip


class StoredCheckpoint:
    """A checkpoint's directory ``TAG``.

    ``others``: paths of the files that do not depend on the number of processes.
    """

    def __init__(self, directory: str) -> None:
        """Read everything but numbers.

        Raises:
            FormatError: A file is missing, partial, foreign or from another checkpoint; the message names it.
            OSError: It cannot be read.
        """
        self.directory = directory
        try:
            tree = CheckpointTree(directory)
            self._refuse_foreign(tree)
            tree.refuse_partial()
            self.step = check_tag(tree, "", None)
        except IncompleteError as error:
            raise FormatError(str(error)) from None
        self.sizes, self.signature, self.has_changed = tree.sizes, tree.signature, tree.has_changed
        models = {_numbers(match): match.group(0) for match in tree.match(_SHARD)}
        self.sharded = bool(models)
        models.update({(0, int(match.group(1))): match.group(0) for match in tree.match(_MODEL)})
        optimizers = {_numbers(match): match.group(0) for match in tree.match(_OPTIMIZER)}
        self.divided = {*optimizers.values(), *models.values()}
        self.others = [path for path in sorted(tree.sizes) if path not in self.divided]
        read = {key: ModelFile.read(posixpath.join(directory, name)) for key, name in sorted(models.items())}
        first = next(iter(read.values()))
        self.ranks = self._ranks(first)
        self.models: Dict[Tuple[int, int], ModelFile] = read
        self.parts: List[ModelRank] = []
        for number in sorted({number for _, number in optimizers}):
            files = [
                OptimizerFile(Archive(posixpath.join(directory, optimizers[rank, number])))
                for rank in range(self.ranks)
            ]
            owners = [read[key] for key in sorted(read) if key[1] == number]
            self.parts.append(ModelRank(owners, files))

    def archives(self) -> List[Archive]:
        """Return every archive that was opened."""
        files = [file.archive for model_rank in self.parts for file in model_rank.optimizers]
        return files + [model.archive for model in self.models.values()]

    def digests(self, written: Optional[StoredCheckpoint] = None) -> Dict[str, str]:
        """Return the SHA-256 of all numbers of each kind.

        Order: that of the parameters, without padding. It is the same whatever number of processes wrote the
        checkpoint.

        Args:
            written: Compared byte by byte in the same pass.

        Raises:
            FormatError: A file is damaged, or ``written`` has other numbers.
            OSError: A file cannot be read.
        """
        kinds = self.kinds()
        for kind in sorted(set(kinds).symmetric_difference(kinds if written is None else written.kinds())):
            raise FormatError(_OTHERS.format(kind))
        with concurrent.futures.ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1)) as pool:
            return dict(zip(kinds, pool.map(self._digest, kinds, [written] * len(kinds))))

    def kinds(self) -> List[str]:
        """Return the kinds of numbers: masters, and states of the optimizer."""
        return sorted(
            {
                kind
                for model_rank in self.parts
                for group in range(len(model_rank.order))
                for kind in model_rank.kinds(group)
            }
        )

    def _digest(self, kind: str, written: Optional[StoredCheckpoint]) -> str:
        digest, own = hashlib.sha256(), self.numbers_of(kind)
        blocks = hashed_blocks(own)
        if written is not None:
            blocks = compared_blocks(own, written.numbers_of(kind), _OTHERS.format(kind))
        for block in blocks:
            digest.update(block)
        return digest.hexdigest()

    def numbers_of(self, kind: str) -> List[Segment]:
        """Return where the numbers of a kind are, in the order of the parameters.

        Raises FormatError.
        """
        return joined(
            segment
            for model_rank in self.parts
            for group, parameters in enumerate(model_rank.order)
            if kind in model_rank.kinds(group)
            for parameter in parameters
            for segment in model_rank.numbers(kind, group, parameter, 0, parameter.size)
        )

    def _ranks(self, model: ModelFile) -> int:
        ranks = value_of(model.tree, "dp_world_size")
        if type(ranks) is not int or ranks < 1:
            raise FormatError("{}: it does not say how many ranks wrote it".format(model.archive.name))
        return ranks

    def _refuse_foreign(self, tree: CheckpointTree) -> None:
        for path in sorted(tree.sizes):
            for pattern, why in _FOREIGN:
                if pattern.fullmatch(path):
                    raise FormatError("{}: {}".format(path, why))


def _numbers(match: "re.Match[str]") -> Tuple[int, int]:
    return int(match.group(1)), int(match.group(2))


def optimizer_name(name: str, rank: int) -> str:
    """Return the name of another rank's file."""
    return re.sub(r"zero_pp_rank_\d+", "zero_pp_rank_{}".format(rank), name)


def rank_of(name: str) -> Optional[int]:
    """Return the data-parallel rank in a file's name; None where there is none."""
    match = re.search(r"zero_pp_rank_(\d+)", name)
    return int(match.group(1)) if match else None
