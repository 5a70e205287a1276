"""Find, replace and rename tensors in the tree of a pickle of ``torch.save``.

Standard library only; Python 3.8.
"""

from __future__ import annotations

import math
from typing import Callable, Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

from midstream_core.format_error import FormatError
from midstream_core.pickle_tree import Items, Made, Pairs, Persistent, Step, Value, is_call, items_of
from midstream_core.restricted_pickle import Global

WIDTHS = {
    "FloatStorage": 4, "DoubleStorage": 8, "HalfStorage": 2, "BFloat16Storage": 2, "LongStorage": 8, "IntStorage": 4,
    "ShortStorage": 2, "CharStorage": 1, "ByteStorage": 1, "BoolStorage": 1,
}  # fmt: skip


_REBUILD, _REBUILD_V2 = (Global("torch._utils", name) for name in ("_rebuild_tensor", "_rebuild_tensor_v2"))


class Tensor(NamedTuple):
    """A tensor in a tree.

    Offset and strides in numbers; ``storage``: its name in the archive.
    """

    node: Made
    arguments: Items  # of the function that makes it: storage, offset, shape, strides and more
    kind: str  # class of the storage
    storage: str
    offset: int
    shape: Tuple[int, ...]
    strides: Tuple[int, ...]

    @property
    def width(self) -> int:
        """Bytes of a number. Raises FormatError."""
        if self.kind not in WIDTHS:
            raise FormatError("a tensor has numbers of {}, whose size is not known".format(self.kind))
        return WIDTHS[self.kind]

    @property
    def length(self) -> int:
        """Count of its numbers."""
        return math.prod(self.shape)

    @property
    def contiguous(self) -> bool:
        """Whether its numbers are one stretch of the storage, in order."""
        expected = 1
        for size, stride in reversed(list(zip(self.shape, self.strides))):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True


def tensor_of(node: Value) -> Optional[Tensor]:
    """Return the tensor of a node, or of a parameter; None for any other node."""
    if is_call(node, "torch._utils", "_rebuild_parameter", "_rebuild_parameter_with_state"):
        node = (items_of(node.arguments) or [None])[0]
    arguments: Value = node.arguments if type(node) is Made else None
    if is_call(node, "torch._tensor", "_rebuild_from_type_v2"):  # a tensor with attributes of its own
        function, _, arguments = (*(items_of(arguments) or []), None, None, None)[:3]
    else:
        function = node.function if type(node) is Made else None
    if function not in (_REBUILD_V2, _REBUILD) or type(arguments) is not Items or len(arguments.items) < 4:
        return None
    name, offset = storage_of(arguments.items[0]), arguments.items[1]
    shape, strides = shape_of(arguments.items[2]), shape_of(arguments.items[3])
    if name is None or type(offset) is not int or offset < 0 or shape is None or strides is None:
        return None
    return Tensor(node, arguments, name[0], name[1], offset, shape, strides)


def storage_of(node: Value) -> Optional[Tuple[str, str]]:
    """Return the class of a storage and its name; None for any other node."""
    key = items_of(node.key, "tuple") if type(node) is Persistent else None
    if key is None or len(key) != 5 or key[0] != "storage" or type(key[1]) is not Global or type(key[2]) is not str:
        return None
    return key[1].name, key[2]


def shape_of(node: Value) -> Optional[Tuple[int, ...]]:
    """Return the sizes of a shape, in numbers; None for any other node."""
    items = items_of(node, "tuple")
    if items is None and is_call(node, "torch", "Size"):
        items = items_of((items_of(node.arguments) or [None])[0], "tuple", "list")
    if items is None or any(type(item) is not int or item < 0 for item in items):
        return None
    return tuple(items)


def make_flat(tensor: Tensor, name: str, count: int) -> None:
    """Change a tensor's node to one of ``count`` numbers with a storage of its own.

    ``name``: of that storage, until `name_storages`.
    """
    arguments = tensor.arguments.items
    key = items_of(arguments[0].key) or []
    storage = Persistent(Items("tuple", [*key[:2], name, key[3], count]))
    arguments[:4] = [storage, 0, Items("tuple", [count]), Items("tuple", [1])]


def name_storages(tree: Value) -> List[Tuple[str, str]]:
    """Number all storages in their order, as ``torch.save`` does.

    Return pairs of old and new name.
    """
    names: Dict[str, str] = {}
    for node in walk(tree):
        name = storage_of(node)
        if name is not None:
            new = names.setdefault(name[1], str(len(names)))
            key = list(items_of(node.key) or [])
            node.key = Items("tuple", [*key[:2], new, *key[3:]])
    return list(names.items())


def walk(tree: Value) -> Iterator[Value]:
    """Yield every node of a tree once, in the order of its pickle."""
    stack: List[Value] = [tree]
    seen: Set[int] = set()
    while stack:
        node = stack.pop()
        if type(node) not in (Items, Pairs, Made, Persistent) or id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        stack.extend(reversed(_children(node)))


def _children(node: Value) -> List[Value]:
    if type(node) is Items:
        return node.items
    if type(node) is Pairs:
        return [item for pair in node.pairs for item in pair]
    if type(node) is Persistent:
        return [node.key]
    children = [node.function, node.arguments, node.keywords]
    for step in node.steps:
        children += [item for value in step.values for item in (value if step.opcode == "SETITEMS" else [value])]
    return children


def first_difference(tree: Value, other: Value, same: Callable[[Value, Value], Optional[bool]], path: str = "") -> str:
    """Return the place where two trees differ; empty where they are equal.

    ``same``: decides on two nodes by themselves; None: compare what is in them.
    """
    decided = same(tree, other)
    if decided is not None:
        return "" if decided else path or "it"
    if type(tree) is not type(other) or type(tree) not in (Items, Pairs, Made, Persistent):
        equal = type(tree) is type(other) and (tree == other or (tree != tree and other != other))
        return "" if equal else path or "it"
    if type(tree) is Pairs or type(tree) is Made:
        ours, theirs = _named(tree), _named(other)
    else:
        ours, theirs = ([(str(place), item) for place, item in enumerate(_children(node))] for node in (tree, other))
    if len(ours) != len(theirs):
        return path or "it"
    for (name, value), (_, other_value) in zip(ours, theirs):
        place = first_difference(value, other_value, same, "{}.{}".format(path, name) if path else name)
        if place:
            return place
    return ""


def _named(node: Value) -> List[Tuple[str, Value]]:
    """Return what is in a dict or an object, each with a name for messages."""
    named: List[Tuple[str, Value]] = []
    pairs = node.pairs if type(node) is Pairs else []
    if type(node) is Made:
        named = [("function", node.function), ("arguments", node.arguments), ("keywords", node.keywords)]
        for step in node.steps:
            if step.opcode == "SETITEMS":
                pairs = [*pairs, *step.values]
            else:
                named += [("state", value) for value in step.values]
    for key, value in pairs:
        name = str(key)[:60] if type(key) in (str, int) else "key"
        named += [(name, key), (name, value)]
    return named


def cloned(node: Value, mark: str) -> Value:
    """Return a copy of a node whose storages have ``mark`` after their names."""
    copies: Dict[int, Value] = {}

    def copy(value: Value) -> Value:
        if type(value) not in (Items, Pairs, Made, Persistent):
            return value
        if id(value) not in copies:
            copies[id(value)] = _copied(value, copy)
        return copies[id(value)]

    result = copy(node)
    for value in walk(result):
        if storage_of(value) is not None:
            key = list(items_of(value.key) or [])
            value.key = Items("tuple", [*key[:2], key[2] + mark, *key[3:]])
    return result


def _copied(node: Value, copy: Callable[[Value], Value]) -> Value:
    if type(node) is Items:
        return Items(node.kind, [copy(item) for item in node.items])
    if type(node) is Pairs:
        return Pairs([[copy(item) for item in pair] for pair in node.pairs])
    if type(node) is Persistent:
        return Persistent(copy(node.key))
    made = Made(node.opcode, copy(node.function), copy(node.arguments), copy(node.keywords))
    for step in node.steps:
        if step.opcode == "SETITEMS":
            made.steps.append(Step(step.opcode, [[copy(item) for item in pair] for pair in step.values]))
        else:
            made.steps.append(Step(step.opcode, [copy(value) for value in step.values]))
    return made


def ordered_dict(pairs: List[List[Value]]) -> Made:
    """Return an ordered dict with these pairs."""
    made = Made("REDUCE", Global("collections", "OrderedDict"), Items("tuple", []))
    if pairs:
        made.steps.append(Step("SETITEMS", pairs))
    return made
