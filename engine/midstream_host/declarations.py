"""Declarations of the functions that the operator's program calls on a host.

A function of `midstream_host` can be called from the app once one of these decorators names it. After lost contact
it is unknown whether the host carried a call out: `reads` and `repeatable` functions are then called again, because a
second call cannot do harm; the effect of a `once` function has to be looked up before anything else is done.
Standard library only; Python 3.8. Every stream begins with this module: it imports nothing that takes time.
"""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Optional, TypeVar

ANSWER_LIMIT = 2 << 20  # bytes of an answer
PAGE_LIMIT = 8 << 20  # of an answer with part of a file: 1 MiB of it, each byte up to six in JSON
MANIFEST_LIMIT = 16 << 20  # of one with a manifest, or a line for each object: 70B parameters have 24,000 objects

Function = TypeVar("Function", bound=Callable[..., Any])


class Declaration(NamedTuple):
    """Ways in which the app may call a function of `midstream_host`."""

    repeatable: bool  # may be called again after contact was lost in the middle of a call
    reason: str
    answer_limit: int = ANSWER_LIMIT  # bytes


def reads(*, limit: int = ANSWER_LIMIT) -> Callable[[Function], Function]:
    """Declare a function that only reads, and answers at most ``limit`` bytes."""
    return _declare(Declaration(True, "it only reads", limit))


def repeatable(reason: str, *, limit: int = ANSWER_LIMIT) -> Callable[[Function], Function]:
    """Declare a function whose second call finds the effect of the first.

    ``reason`` says why the second call can do no harm.
    """
    return _declare(Declaration(True, reason, limit))


def once(reason: str, *, limit: int = ANSWER_LIMIT) -> Callable[[Function], Function]:
    """Declare a function that is never called again by itself, for ``reason``."""
    return _declare(Declaration(False, reason, limit))


def program(function: Function) -> Function:
    """Declare a program that owns stdin and stdout, and is never restarted by itself."""
    return _declare(Declaration(False, "it streams"))(function)


def declaration_of(function: Callable[..., object]) -> Optional[Declaration]:
    """The declaration of a function; None where it has none."""
    return getattr(function, "declaration", None)


def _declare(declaration: Declaration) -> Callable[[Function], Function]:
    def mark(function: Function) -> Function:
        setattr(function, "declaration", declaration)  # noqa: B010  a function's type has no such attribute
        return function

    return mark
