"""Configs and lock files bundled with midstream."""

from __future__ import annotations

import contextlib
import importlib.util
import shlex
import sys
from pathlib import Path

from midstream.errors import MidstreamError, UsageError
from midstream.suggestions import did_you_mean

CONFIGS = "configs"


def shipped(name: str) -> Path:
    """Return the path of a bundled file, in the source tree or the wheel.

    The name is one such as "configs/gpt2_nano.yaml".

    Raises:
        MidstreamError: The installation lacks the file.
    """
    package = Path(__file__).parent
    for root in (package.parents[1], package / "_shipped"):
        if (root / name).is_file():
            return root / name
    raise MidstreamError(f"{name} is missing from this installation", "reinstall midstream")


def config_path(name: str | Path) -> Path:
    """Return the path of a config: a file of the user, else the bundled one.

    A bundled one is found by its name (``configs/gpt2_nano.yaml``).

    Raises:
        UsageError: There is neither.
    """
    path = Path(name).expanduser()
    if path.exists() or path.is_absolute():
        return path
    if path.parts[:1] == (CONFIGS,) and ".." not in path.parts:
        with contextlib.suppress(MidstreamError):
            return shipped(path.as_posix())
        hint = did_you_mean(str(name), config_names())
        raise UsageError(f"{name}: no such file, and midstream ships {', '.join(config_names())}", hint)
    meant = f"{CONFIGS}/{path.name.removesuffix('.yaml')}.yaml"
    if len(path.parts) == 1 and meant in config_names():
        raise UsageError(f"{name}: no such file", f"did you mean {meant}?")
    return path


def config_names() -> list[str]:
    """Return the names of the bundled configs."""
    directory = shipped(f"{CONFIGS}/gpt2_nano.yaml").parent
    return [f"{CONFIGS}/{path.name}" for path in sorted(directory.glob("*.yaml")) if path.name != "fleet.example.yaml"]


def engine_packages_hint() -> str:
    """Return the command that installs the engine's packages from its lock, by hash.

    The command does not name ``midstream[engine]``: midstream is on no package index, so that name would be another
    project's.
    """
    installer = [sys.executable, "-m", "pip", "install"]
    if importlib.util.find_spec("pip") is None:  # an environment that uv made
        installer = ["uv", "pip", "install", "--python", sys.executable]
    return shlex.join([*installer, "-r", str(shipped("locks/engine-cpu.txt"))])
