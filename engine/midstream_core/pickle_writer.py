"""Writes the tree of a pickle (`pickle_tree`): the same tree is the same bytes.

Python 3.8, standard library.
"""

from __future__ import annotations

import struct
from typing import Callable, Dict, List

from midstream_core.format_error import FormatError
from midstream_core.pickle_tree import Items, Made, Pairs, Persistent, Step, Value
from midstream_core.restricted_pickle import Global

MAX_DEPTH = 200  # of nested objects: each takes two frames of Python's stack
_BATCH = 1000  # items of one opcode, as pickle itself has it
_OPEN = {"list": b"]", "set": b"\x8f"}
_CALLS = {"REDUCE": b"R", "NEWOBJ": b"\x81", "NEWOBJ_EX": b"\x92"}


def dump(tree: Value, protocol: int = 2) -> bytes:
    """Return the pickle of a tree.

    Args:
        tree: What `pickle_tree.parse` returned, with changes.
        protocol: Stated in the pickle; sets and bytes have opcodes of protocol 4.

    Raises:
        FormatError: It is nested too deeply, or a tuple contains itself.
    """
    writer = _Writer()
    writer.out += b"\x80" + bytes([protocol])
    writer.save(tree, 0)
    return bytes(writer.out + b".")


class _Writer:
    def __init__(self) -> None:
        self.out = bytearray()
        self._places: Dict[Value, int] = {}  # by identity, or by value for texts and globals
        self._nodes: List[Value] = []  # keeps identities in use
        self._savers: Dict[type, Callable[[Value, int], None]] = {
            Items: self._items, Pairs: self._pairs, Made: self._made, Persistent: self._persistent,
        }  # fmt: skip

    def save(self, node: Value, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise FormatError("its pickle is nested more than {} levels deep".format(MAX_DEPTH))
        if type(node) in (bool, int, float, bytes) or node is None:
            self.out += _scalar(node)
            return
        place = self._places.get(_identity(node))
        if place is not None:
            self.out += b"h" + bytes([place]) if place < 256 else b"j" + struct.pack("<I", place)
        elif type(node) is str:
            text = node.encode("utf-8", "surrogatepass")
            self._put(node, b"X" + struct.pack("<I", len(text)) + text)
        elif type(node) is Global:
            self._put(node, "c{}\n{}\n".format(*node).encode())
        else:
            self._savers[type(node)](node, depth + 1)

    def _put(self, node: Value, code: bytes) -> None:
        """Write what makes a node, and remember it."""
        place = len(self._nodes)
        self._nodes.append(node)
        self._places[_identity(node)] = place
        self.out += code + (b"q" + bytes([place]) if place < 256 else b"r" + struct.pack("<I", place))

    def _items(self, node: Items, depth: int) -> None:
        if node.kind in _OPEN:
            self._put(node, _OPEN[node.kind])
            self._step(Step("APPENDS" if node.kind == "list" else "ADDITEMS", node.items), depth)
            return
        frozen, count = node.kind == "frozenset", len(node.items)
        if frozen or count > 3:
            self.out += b"("
        for item in node.items:
            self.save(item, depth)
        if _identity(node) in self._places:
            raise FormatError("its pickle has a tuple that contains itself")
        if not count and not frozen:
            self.out += b")"
        else:
            self._put(node, b"\x91" if frozen else b"\x85\x86\x87"[count - 1 : count] if count <= 3 else b"t")

    def _pairs(self, node: Pairs, depth: int) -> None:
        self._put(node, b"}")
        self._step(Step("SETITEMS", node.pairs), depth)

    def _made(self, node: Made, depth: int) -> None:
        self.save(node.function, depth)
        self.save(node.arguments, depth)
        if node.opcode == "NEWOBJ_EX":
            self.save(node.keywords, depth)
        if _identity(node) in self._places:
            raise FormatError("its pickle has an object among its own arguments")
        self._put(node, _CALLS[node.opcode])
        for step in node.steps:
            self._step(step, depth)

    def _step(self, step: Step, depth: int) -> None:
        if step.opcode == "BUILD":
            self.save(step.values[0], depth)
            self.out += b"b"
            return
        end = {"APPENDS": b"e", "ADDITEMS": b"\x90", "SETITEMS": b"u"}[step.opcode]
        for begin in range(0, len(step.values), _BATCH):
            self.out += b"("
            for value in step.values[begin : begin + _BATCH]:
                for item in value if step.opcode == "SETITEMS" else (value,):
                    self.save(item, depth)
            self.out += end

    def _persistent(self, node: Persistent, depth: int) -> None:
        self.save(node.key, depth)
        self._put(node, b"Q")


def _identity(node: Value) -> Value:
    return (type(node), node) if type(node) in (str, Global) else id(node)


def _scalar(value: Value) -> bytes:
    if value is None:
        return b"N"
    if type(value) is bool:
        return b"\x88" if value else b"\x89"
    if type(value) is float:
        return b"G" + struct.pack(">d", value)
    if type(value) is bytes:
        return b"B" + struct.pack("<I", len(value)) + value
    if 0 <= value < 256:
        return b"K" + bytes([value])
    if 0 <= value < 1 << 16:
        return b"M" + struct.pack("<H", value)
    if -(1 << 31) <= value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    if len(data) < 256:
        return b"\x8a" + bytes([len(data)]) + data
    return b"\x8b" + struct.pack("<i", len(data)) + data
