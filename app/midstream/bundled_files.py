"""Files that come with midstream and are no Python: configs and lock files."""

from __future__ import annotations

from pathlib import Path

from midstream.errors import MidstreamError


def shipped(name: str) -> Path:
    """The file ``name`` ("configs/gpt2_nano.yaml"), from the source tree or from the installed wheel."""
    package = Path(__file__).parent
    for root in (package.parents[1], package / "_shipped"):
        if (root / name).is_file():
            return root / name
    raise MidstreamError(f"{name} is missing from this installation", "install midstream again")
