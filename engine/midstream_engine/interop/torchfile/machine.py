"""A pickle interpreter that cannot execute anything.

Python's own unpickler looks up callables and calls them. This one has no such step: a global is a name, a call is a row
of a table (``calls.CALLS``), and any other name or opcode is an error. A hostile file can still be large or slow;
therefore the memo is a dict (no slot numbers that allocate), keys are scalars (no nested tuples whose hash takes
exponential time), and nothing here compares or traverses the objects.
"""

from __future__ import annotations

import pickletools
import struct
from collections.abc import Callable
from typing import Any

from midstream_engine.interop.errors import ConversionError, PickleRejectedError
from midstream_engine.interop.torchfile.calls import Global, Record, call, known, scalar

_MARK = object()
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_VALUES = frozenset({
    "INT", "LONG", "LONG1", "LONG4", "BININT", "BININT1", "BININT2", "FLOAT", "BINFLOAT", "UNICODE", "BINUNICODE",
    "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8",
    "STRING", "BINSTRING", "SHORT_BINSTRING",
})  # fmt: skip
_EMPTY: dict[str, Callable[[], Any]] = {"EMPTY_LIST": list, "EMPTY_TUPLE": tuple, "EMPTY_DICT": dict, "EMPTY_SET": set}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


def load(data: bytes, persistent: Callable[[Any], Any]) -> Any:
    """Return the object of ``data`` (a pickle of any protocol), made of plain values, tensors and records.

    ``persistent`` returns the objects of persistent ids.

    Raises:
        PickleRejectedError: The pickle is damaged or not allowed. Nothing was executed.
    """
    try:
        return _Machine(persistent).run(data)
    except PickleRejectedError:
        raise
    except ConversionError as error:
        raise PickleRejectedError(str(error)) from None
    except (ValueError, TypeError, IndexError, KeyError, OverflowError, struct.error) as error:
        raise PickleRejectedError(f"broken pickle: {' '.join(str(error).split())[:200]}") from None


class _Machine:
    def __init__(self, persistent: Callable[[Any], Any]) -> None:
        self._persistent = persistent
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def run(self, data: bytes) -> Any:
        for opcode, argument, position in pickletools.genops(data):
            if opcode.name == "STOP":
                if len(self._stack) != 1 or self._stack[0] is _MARK or position != len(data) - 1:
                    raise PickleRejectedError("broken pickle: something is left at its end")
                return self._stack.pop()
            self._step(opcode.name, argument)
        raise PickleRejectedError("broken pickle: it has no end")

    def _push(self, name: str, argument: Any) -> bool:
        """Run an opcode that pushes a value, uses the memo or makes a collection; False if it is another one."""
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
            self._gather(self._unmark(), lambda items: _set_items({}, items))
        else:
            return False
        return True

    def _step(self, name: str, argument: Any) -> None:
        stack = self._stack
        if self._push(name, argument):
            return
        if name == "APPEND":
            item = stack.pop()
            _list(stack[-1]).append(item)
        elif name == "APPENDS":
            items = self._taken(self._unmark())
            _list(stack[-1]).extend(items)
        elif name == "SETITEM":
            items = [stack.pop(), stack.pop()]
            _set_items(_dict(stack[-1]), items[::-1])
        elif name == "SETITEMS":
            items = self._taken(self._unmark())
            _set_items(_dict(stack[-1]), items)
        elif name == "ADDITEMS":
            items = self._taken(self._unmark())
            if type(stack[-1]) is not set:
                raise PickleRejectedError("broken pickle: it adds to what is no set")
            stack[-1].update(scalar(item) for item in items)
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            self._global(name, argument)
        elif name in ("REDUCE", "NEWOBJ"):
            arguments, function = stack.pop(), stack.pop()
            if type(function) is not Global or type(arguments) is not tuple:
                raise PickleRejectedError("broken pickle: it calls what is no global")
            stack.append(call(function, arguments))
        elif name == "BUILD":
            self._build(stack.pop())
        elif name == "BINPERSID":
            stack.append(self._persistent(stack.pop()))
        elif name not in ("PROTO", "FRAME"):
            raise PickleRejectedError(f"opcode {name} is not allowed in a checkpoint")

    def _global(self, name: str, argument: Any) -> None:
        if name == "GLOBAL":
            module, _, attribute = str(argument).partition(" ")
        else:
            attribute, module = self._stack.pop(), self._stack.pop()
            if type(attribute) is not str or type(module) is not str:
                raise PickleRejectedError("broken pickle: a global whose name is no text")
        if not known(module, attribute):
            raise PickleRejectedError(f"the global {module}.{attribute} is not allowed in a checkpoint"[:300])
        self._stack.append(Global(module, attribute))

    def _build(self, state: Any) -> None:
        target = self._stack[-1]
        if type(target) is Record:
            target.state = state
        elif type(target) is not dict:  # an ordered dict's own attributes (a state dict's _metadata) are left out
            raise PickleRejectedError("broken pickle: it sets the state of what has none")

    def _unmark(self) -> int:
        """Remove the last mark; return its position."""
        for position in range(len(self._stack) - 1, -1, -1):
            if self._stack[position] is _MARK:
                del self._stack[position]
                return position
        raise PickleRejectedError("broken pickle: a mark is missing")

    def _taken(self, place: int) -> list[Any]:
        items = self._stack[place:]
        del self._stack[place:]
        return items

    def _gather(self, place: int, make: Callable[[list[Any]], Any]) -> None:
        if place < 0:
            raise PickleRejectedError("broken pickle: too little on its stack")
        self._stack.append(make(self._taken(place)))


def _list(value: Any) -> list[Any]:
    if type(value) is not list:
        raise PickleRejectedError("broken pickle: it appends to what is no list")
    return value


def _dict(value: Any) -> dict[Any, Any]:
    if type(value) is not dict:
        raise PickleRejectedError("broken pickle: it sets items of what is no dict")
    return value


def _set_items(target: dict[Any, Any], items: list[Any]) -> dict[Any, Any]:
    if len(items) % 2:
        raise PickleRejectedError("broken pickle: a key without a value")
    for place in range(0, len(items), 2):
        target[scalar(items[place])] = items[place + 1]
    return target
