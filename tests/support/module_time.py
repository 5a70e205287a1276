"""``time`` of one module replaced: other threads of the process, and modules beside it, keep the real one."""

import time
import types
from collections.abc import Callable

import pytest


def replace_time(monkeypatch: pytest.MonkeyPatch, module: types.ModuleType, **functions: Callable[..., object]) -> None:
    """Let ``module`` find these functions in its ``time``, and the real ones of other names."""
    monkeypatch.setattr(module, "time", types.SimpleNamespace(**{**vars(time), **functions}))
