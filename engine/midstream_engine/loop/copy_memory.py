"""Whether the host's memory suffices to copy a state.

On CPU devices a state is in host memory already. Training continues while a copy of it is written; without room for the
copy it waits until the state is written, for which some blocks of memory suffice.
"""

from __future__ import annotations

from collections.abc import Callable

from midstream_engine.array_types import PyTree
from midstream_engine.checkpoint.saving.snapshot import copied_bytes, reusable_bytes
from midstream_engine.runtime.available_memory import available_memory

ALWAYS_COPIED = 64 << 20  # bytes of a state that is copied without a look at the memory
RESERVE = 1.05  # of the bytes needed: the writer's blocks, and what else the machine does


def memory_shortage(state: PyTree, available: Callable[[], int | None] = available_memory) -> str:
    """Return why ``state`` cannot be copied in memory.

    Empty if a copy is possible, or if nothing is known.

    Args:
        state: Pytree of arrays.
        available: Returns the bytes that this process may still use; None: not known.
    """
    copied = copied_bytes(state)
    if copied < ALWAYS_COPIED:
        return ""
    needed = copied - reusable_bytes()
    available_bytes = available()
    if available_bytes is None or RESERVE * needed <= available_bytes:
        return ""
    return f"a copy of it needs {_gib(needed)} of memory, {_gib(available_bytes)} are available"


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.2f} GiB"
