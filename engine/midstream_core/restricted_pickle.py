"""A pickle interpreter that cannot execute anything.

Python's own unpickler looks up callables and calls them. This one has no such step: a global is a name, and a call is
what the vocabulary returns for that name. A hostile file can still be large or slow; therefore the memo is a dict (no
slot numbers that allocate), keys are fast to hash (no nested tuples, whose hash takes exponential time), nothing here
compares or traverses the objects, and the number of operations is limited: one byte makes an object of sixty.

Both programs read files of torch. The source is streamed to hosts: standard library alone, Python 3.8.
"""

from __future__ import annotations

import pickletools
import struct
from collections.abc import Callable
from typing import Any, NamedTuple, cast

MAX_OPERATIONS = 1 << 24  # about 1 GB of empty lists; the pickle of a large checkpoint has some millions
SCALARS = (str, int, float, bool, bytes, type(None))
_MARK = object()
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_VALUES = frozenset([
    "INT", "LONG", "LONG1", "LONG4", "BININT", "BININT1", "BININT2", "FLOAT", "BINFLOAT", "UNICODE", "BINUNICODE",
    "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8",
    "STRING", "BINSTRING", "SHORT_BINSTRING",
])  # fmt: skip
_EMPTY: dict[str, Callable[[], object]] = {
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "EMPTY_DICT": dict,
    "EMPTY_SET": set,
}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class PickleError(ValueError):
    """Error of a pickle that is damaged, or has something that is not allowed.

    Its vocabulary decides what is allowed. Nothing was executed.
    """


class Global(NamedTuple):
    """The name of a global."""

    module: str
    name: str


class Record:
    """An object of a class that is only named: its arguments and its state."""

    def __init__(self, kind: Global, arguments: tuple[Any, ...]) -> None:
        self.kind, self.arguments = kind, arguments
        self.state: Any = None


class Vocabulary:
    """Names that a pickle may have, and what they stand for.

    This base class allows none.

    ``inert``: records accept items, sets may be frozen and constructors may have named arguments, all of which is left
    out: for pickles with classes of any library, of which only the plain values are read.
    """

    inert = False

    def allows(self, module: str, name: str) -> bool:  # noqa: ARG002  for those that allow some
        """Return whether the pickle may name a global."""
        return False

    def call(self, function: Global, arguments: tuple[object, ...]) -> object:  # noqa: ARG002
        """Return what a call of an allowed global stands for.

        Raises ValueError or TypeError.
        """
        raise PickleError("the global {}.{} is not called in a checkpoint".format(*function)[:300])

    def persistent(self, key: object) -> object:  # noqa: ARG002
        """Return the object of a persistent id. Raises ValueError."""
        raise PickleError("opcode BINPERSID is not allowed in a checkpoint")

    def key(self, value: object) -> object:
        """Return ``value`` if it may be a key, which must be fast to hash."""
        if not isinstance(value, SCALARS):
            raise PickleError(f"a key of type {type(value).__name__} is not allowed in a checkpoint")
        return value


def load(data: bytes, vocabulary: Vocabulary) -> Any:
    """Return the object of ``data``, a pickle of any protocol.

    The object is made of plain values, records and the results of calls.

    Raises:
        PickleError: The pickle is damaged or not allowed. Nothing was executed.
    """
    try:
        return _Machine(vocabulary).run(data)
    except PickleError:
        raise
    except (ValueError, TypeError, IndexError, KeyError, OverflowError, struct.error) as error:
        raise PickleError("broken pickle: {}".format(" ".join(str(error).split())[:200])) from None


def items_of(value: object, *kinds: type) -> tuple[object, ...] | None:
    """Return the items of a tuple or list; None for any other value.

    ``kinds``: the types that count.
    """
    return tuple(cast("list[object]", value)) if type(value) in (kinds or (tuple, list)) else None


class _Machine:
    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._stack: list[object] = []
        self._memo: dict[int, object] = {}

    def run(self, data: bytes) -> object:
        for number, (opcode, argument, position) in enumerate(pickletools.genops(data)):
            if number >= MAX_OPERATIONS:
                raise PickleError(f"a pickle of more than {MAX_OPERATIONS} operations")
            if opcode.name == "STOP":
                if len(self._stack) != 1 or self._stack[0] is _MARK or position != len(data) - 1:
                    raise PickleError("broken pickle: something is left at its end")
                return self._stack.pop()
            self._step(opcode.name, argument)
        raise PickleError("broken pickle: it has no end")

    def _push(self, name: str, argument: Any) -> bool:
        """Run an opcode that pushes a value, uses the memo or makes a collection.

        Return False if it is another one.
        """
        stack = self._stack
        if name in _VALUES:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name in ("PUT", "BINPUT", "LONG_BINPUT"):
            self._memo[int(argument)] = stack[-1]
        elif name == "MEMOIZE":
            self._memo[len(self._memo)] = stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(self._memo[int(argument)])
        elif name == "MARK":
            stack.append(_MARK)
        elif name in _TUPLES:
            self._gather(len(stack) - _TUPLES[name], tuple)
        elif name in ("TUPLE", "LIST"):
            self._gather(self._unmark(), tuple if name == "TUPLE" else list)
        elif name == "DICT":
            self._gather(self._unmark(), lambda items: self._set_items({}, items))
        elif name == "FROZENSET" and self._vocabulary.inert:
            self._gather(self._unmark(), lambda items: {self._vocabulary.key(item) for item in items})
        else:
            return False
        return True

    def _step(self, name: str, argument: Any) -> None:
        stack = self._stack
        if self._push(name, argument):
            return
        if name == "APPEND":
            item = stack.pop()
            self._extend([item])
        elif name == "APPENDS":
            self._extend(self._taken(self._unmark()))
        elif name == "SETITEM":
            items = [stack.pop(), stack.pop()]
            self._set_items(stack[-1], items[::-1])
        elif name == "SETITEMS":
            items = self._taken(self._unmark())
            self._set_items(stack[-1], items)
        elif name == "ADDITEMS":
            items = self._taken(self._unmark())
            if type(stack[-1]) is not set:
                raise PickleError("broken pickle: it adds to what is no set")
            cast("set[object]", stack[-1]).update(self._vocabulary.key(item) for item in items)
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            self._global(name, argument)
        elif name in ("REDUCE", "NEWOBJ") or (name == "NEWOBJ_EX" and self._vocabulary.inert):
            self._call(name)
        elif name == "BUILD":
            self._build(stack.pop())
        elif name == "BINPERSID":
            stack.append(self._vocabulary.persistent(stack.pop()))
        elif name not in ("PROTO", "FRAME"):
            raise PickleError(f"opcode {name} is not allowed in a checkpoint")

    def _global(self, name: str, argument: Any) -> None:
        if name == "GLOBAL":
            module, _, attribute = str(argument).partition(" ")
        else:
            attribute, module = self._stack.pop(), self._stack.pop()
            if type(attribute) is not str or type(module) is not str:
                raise PickleError("broken pickle: a global whose name is no text")
        if not self._vocabulary.allows(module, attribute):
            raise PickleError(f"the global {module}.{attribute} is not allowed in a checkpoint"[:300])
        self._stack.append(Global(module, attribute))

    def _call(self, name: str) -> None:
        if name == "NEWOBJ_EX":
            self._stack.pop()  # named arguments of the constructor
        arguments, function = self._stack.pop(), self._stack.pop()
        if self._vocabulary.inert and type(function) is Record and type(arguments) is tuple:
            self._stack.append(Record(function.kind, cast("tuple[object, ...]", arguments)))  # what a record returns
            return
        if type(function) is not Global or type(arguments) is not tuple:
            raise PickleError("broken pickle: it calls what is no global")
        self._stack.append(self._vocabulary.call(function, cast("tuple[object, ...]", arguments)))

    def _build(self, state: object) -> None:
        target = self._stack[-1]
        if type(target) is Record:
            target.state = state
        elif type(target) is not dict:  # an ordered dict's own attributes (a state dict's _metadata) are left out
            raise PickleError("broken pickle: it sets the state of what has none")

    def _extend(self, items: list[object]) -> None:
        target = self._stack[-1]
        if type(target) is list:
            cast("list[object]", target).extend(items)
        elif not self._leaves_out(target):
            raise PickleError("broken pickle: it appends to what is no list")

    def _set_items(self, target: object, items: list[object]) -> object:
        if len(items) % 2:
            raise PickleError("broken pickle: a key without a value")
        if type(target) is dict:
            mapping = cast("dict[object, object]", target)
            for place in range(0, len(items), 2):
                mapping[self._vocabulary.key(items[place])] = items[place + 1]
            return mapping
        if not self._leaves_out(target):
            raise PickleError("broken pickle: it sets items of what is no dict")
        return target

    def _leaves_out(self, target: object) -> bool:
        """Return whether ``target``, a class that is only named, accepts items."""
        return self._vocabulary.inert and type(target) is Record

    def _unmark(self) -> int:
        """Remove the last mark; return its position."""
        for position in range(len(self._stack) - 1, -1, -1):
            if self._stack[position] is _MARK:
                del self._stack[position]
                return position
        raise PickleError("broken pickle: a mark is missing")

    def _taken(self, place: int) -> list[object]:
        items = self._stack[place:]
        del self._stack[place:]
        return items

    def _gather(self, place: int, make: Callable[[list[object]], object]) -> None:
        if place < 0:
            raise PickleError("broken pickle: too little on its stack")
        self._stack.append(make(self._taken(place)))
