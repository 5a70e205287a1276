"""Trees of what pickles would make, to change and to write again.

Nothing is looked up or called: a global is a name, a call is a node with its arguments. A tree keeps all that a
pickle has, where `midstream_core.restricted_pickle` leaves out what is not read. Standard library only; Python 3.8.
"""

from __future__ import annotations

import pickletools
import struct
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple, Union

from midstream_core.format_error import FormatError
from midstream_core.restricted_pickle import MAX_OPERATIONS, Global

_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_VALUES = frozenset([
    "INT", "LONG", "LONG1", "LONG4", "BININT", "BININT1", "BININT2", "FLOAT", "BINFLOAT",
    "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8",
])  # fmt: skip
_EMPTY = {"EMPTY_LIST": "list", "EMPTY_TUPLE": "tuple", "EMPTY_SET": "set"}
_GATHERED = {"TUPLE": "tuple", "LIST": "list", "FROZENSET": "frozenset"}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_ORDERED = ("OrderedDict", "defaultdict", "dict", "Counter")
Value = Any  # of a pickle: a scalar, or a node of its tree
Scalar = Union[None, bool, int, float, str, bytes]


class Items:
    """A list, tuple, set or frozenset."""

    __slots__ = ("items", "kind")

    def __init__(self, kind: str, items: List[Value]) -> None:
        self.kind, self.items = kind, items


class Pairs:
    """A plain dict."""

    __slots__ = ("pairs",)

    def __init__(self, pairs: List[List[Value]]) -> None:
        self.pairs = pairs


class Step(NamedTuple):
    """Change of an object after it was made.

    ``opcode``: BUILD, APPENDS, ADDITEMS or SETITEMS.
    """

    opcode: str
    values: List[Value]


class Made:
    """The result of a call.

    ``opcode``: REDUCE, NEWOBJ or NEWOBJ_EX, which has keyword arguments too.
    """

    __slots__ = ("arguments", "function", "keywords", "opcode", "steps")

    def __init__(self, opcode: str, function: Value, arguments: Value, keywords: Value = None) -> None:
        self.opcode, self.function, self.arguments, self.keywords = opcode, function, arguments, keywords
        self.steps: List[Step] = []


class Persistent:
    """An object outside of the pickle, by its key: a tensor's storage."""

    __slots__ = ("key",)

    def __init__(self, key: Value) -> None:
        self.key = key


Node = Union[Scalar, Global, Items, Pairs, Made, Persistent]
_MARK = object()


def parse(data: bytes) -> Value:
    """Return the tree of a pickle of protocol 2 or later.

    Raises FormatError: it is damaged, or has an opcode that no such pickle needs. Nothing was executed.
    """
    try:
        return _Parser().run(data)
    except FormatError:
        raise
    except (ValueError, TypeError, IndexError, KeyError, OverflowError, AttributeError, struct.error) as error:
        raise FormatError("its pickle is broken: {}".format(" ".join(str(error).split())[:200])) from None


def items_of(node: Value, *kinds: str) -> Optional[List[Value]]:
    """Return the items of a list or tuple; None for any other node.

    ``kinds``: those that count.
    """
    return node.items if type(node) is Items and node.kind in (kinds or ("list", "tuple")) else None


def is_call(node: Value, module: str, *names: str) -> bool:
    """Return whether a node is the result of one of these functions."""
    return (
        type(node) is Made
        and type(node.function) is Global
        and node.function.module == module
        and node.function.name in names
    )


def pairs_of(node: Value) -> Optional[List[List[Value]]]:
    """Return the pairs of a dict, ordered or not; None for any other node.

    They may be changed in place.

    The pairs of an ordered dict are joined into one step.
    """
    if type(node) is Pairs:
        return node.pairs
    if not (is_call(node, "collections", *_ORDERED) or is_call(node, "builtins", *_ORDERED)):
        return None
    stored = [step for step in node.steps if step.opcode == "SETITEMS"]
    joined = Step("SETITEMS", [pair for step in stored for pair in step.values])
    node.steps = [joined, *(step for step in node.steps if step.opcode != "SETITEMS")]
    return joined.values


def value_of(node: Value, key: Scalar) -> Value:
    """Return the value of a key of a dict; None where there is none."""
    for name, value in pairs_of(node) or []:
        if type(name) is type(key) and name == key:
            return value
    return None


def set_value(node: Value, key: Scalar, value: Value) -> None:
    """Set the value of a key of a dict that has it."""
    for pair in pairs_of(node) or []:
        if type(pair[0]) is type(key) and pair[0] == key:
            pair[1] = value
            return
    raise FormatError("it has no {}".format(key))


class _Parser:
    def __init__(self) -> None:
        self._stack: List[Value] = []
        self._memo: Dict[int, Value] = {}
        self._gathers: Dict[str, Callable[[List[Value]], Value]] = {
            "DICT": lambda items: Pairs(_paired(items)),
            **{name: lambda items, kind=kind: Items(kind, items) for name, kind in _GATHERED.items()},
        }

    def run(self, data: bytes) -> Value:
        for number, (opcode, argument, position) in enumerate(pickletools.genops(data)):
            if number >= MAX_OPERATIONS:
                raise FormatError("its pickle has more than {} operations".format(MAX_OPERATIONS))
            if opcode.name == "STOP":
                if len(self._stack) != 1 or self._stack[0] is _MARK or position != len(data) - 1:
                    raise FormatError("its pickle is broken: something is left at its end")
                return self._stack.pop()
            if not self._push(opcode.name, argument):
                self._change(opcode.name, argument)
        raise FormatError("its pickle is broken: it has no end")

    def _push(self, name: str, argument: Value) -> bool:
        """Run an opcode that pushes a value; return False if it is another one."""
        stack = self._stack
        if name in _VALUES:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _EMPTY:
            stack.append(Items(_EMPTY[name], []))
        elif name == "EMPTY_DICT":
            stack.append(Pairs([]))
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(self._memo[int(argument)])
        elif name == "MARK":
            stack.append(_MARK)
        elif name in _TUPLES:
            stack.append(Items("tuple", self._last(_TUPLES[name])))
        elif name in self._gathers:
            stack.append(self._gathers[name](self._marked()))
        elif name == "GLOBAL":
            stack.append(Global(*_name_of(*str(argument).partition(" ")[::2])))
        elif name == "STACK_GLOBAL":
            stack.append(Global(*_name_of(*self._last(2))))
        else:
            return False
        return True

    def _change(self, name: str, argument: Value) -> None:
        """Run an opcode that changes what is there."""
        stack = self._stack
        if name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self._memo[len(self._memo) if name == "MEMOIZE" else int(argument)] = stack[-1]
        elif name in ("APPEND", "APPENDS"):
            self._extend("APPENDS", self._last(1) if name == "APPEND" else self._marked())
        elif name == "ADDITEMS":
            self._extend(name, self._marked())
        elif name in ("SETITEM", "SETITEMS"):
            self._set_items(_paired(self._last(2) if name == "SETITEM" else self._marked()))
        elif name in ("REDUCE", "NEWOBJ"):
            function, arguments = self._last(2)
            stack.append(_made(name, function, arguments))
        elif name == "NEWOBJ_EX":
            function, arguments, keywords = self._last(3)
            stack.append(_made(name, function, arguments, keywords))
        elif name == "BUILD":
            (state,) = self._last(1)
            self._target().steps.append(Step(name, [state]))
        elif name == "BINPERSID":
            stack.append(Persistent(self._last(1)[0]))
        elif name not in ("PROTO", "FRAME"):
            raise FormatError("its pickle has the opcode {}, which no checkpoint needs".format(name))

    def _target(self) -> Made:
        """Return the object on top. Raises FormatError."""
        target = self._stack[-1]
        if type(target) is not Made:
            raise FormatError("its pickle is broken: it changes what is no object")
        return target

    def _extend(self, opcode: str, items: List[Value]) -> None:
        target = self._stack[-1]
        if type(target) is Items and target.kind == ("list" if opcode == "APPENDS" else "set"):
            target.items.extend(items)
        else:
            self._target().steps.append(Step(opcode, items))

    def _set_items(self, pairs: List[List[Value]]) -> None:
        target = self._stack[-1]
        if type(target) is Pairs:
            target.pairs.extend(pairs)
        else:
            self._target().steps.append(Step("SETITEMS", pairs))

    def _last(self, count: int) -> List[Value]:
        place = len(self._stack) - count
        if place < 0 or any(item is _MARK for item in self._stack[place:]):
            raise FormatError("its pickle is broken: too little on its stack")
        items = self._stack[place:]
        del self._stack[place:]
        return items

    def _marked(self) -> List[Value]:
        """Remove what is above the last mark, and the mark."""
        for place in range(len(self._stack) - 1, -1, -1):
            if self._stack[place] is _MARK:
                items = self._stack[place + 1 :]
                del self._stack[place:]
                return items
        raise FormatError("its pickle is broken: a mark is missing")


def _made(opcode: str, function: Value, arguments: Value, keywords: Value = None) -> Made:
    if type(function) not in (Global, Made) or items_of(arguments, "tuple") is None:
        raise FormatError("its pickle is broken: it calls what is no global")
    return Made(opcode, function, arguments, keywords)


def _name_of(module: Value, name: Value) -> Tuple[str, str]:
    if type(module) is not str or type(name) is not str:
        raise FormatError("its pickle is broken: a global whose name is no text")
    return module, name


def _paired(items: List[Value]) -> List[List[Value]]:
    if len(items) % 2:
        raise FormatError("its pickle is broken: a key without a value")
    return [[items[place], items[place + 1]] for place in range(0, len(items), 2)]
