"""The version of midstream, with the git commit where it is known."""

from __future__ import annotations

import json
import subprocess
from importlib import metadata
from pathlib import Path

from midstream import __version__

_GIT_TIMEOUT = 5.0  # seconds
_PACKAGE = Path(__file__).parent
_STAMP = _PACKAGE / "_shipped" / "commit"  # written into a wheel when it is built from a clone: hatch_build.py


def version_text() -> str:
    """Return the version, with the commit if it is known.

    Forms: ``0.1.0 (commit 1a2b3c4d5e6f)``, ``0.1.0 (commit 1a2b3c4d5e6f, changed)`` or ``0.1.0``.

    The commit is that of the clone that runs, of the clone that the wheel was built from, or of the git URL that
    midstream was installed from.
    """
    commit = _of_clone(_PACKAGE.parents[1]) or _of_wheel() or _of_url()
    return f"{__version__} (commit {commit})" if commit else __version__


def _of_clone(root: Path) -> str:
    """Return the commit of a clone of midstream, and whether its files are changed.

    The text is empty if ``root`` is no clone.
    """
    if not (root / ".git").exists():
        return ""
    commit = _git(root, "rev-parse", "--short=12", "HEAD")
    changed = _git(root, "status", "--porcelain", "--untracked-files=no") if commit else ""
    return f"{commit}, changed" if changed else commit


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "--no-optional-locks", "-C", str(root), *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_GIT_TIMEOUT, stdin=subprocess.DEVNULL, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _of_wheel() -> str:
    try:
        return _STAMP.read_text(encoding="utf-8").strip()[:64]
    except (OSError, ValueError):
        return ""


def _of_url() -> str:
    """Return the commit that pip or uv noted for ``git+https://...`` (PEP 610)."""
    try:
        noted = json.loads(metadata.distribution("midstream").read_text("direct_url.json") or "{}")
        return str(noted["vcs_info"]["commit_id"])[:12]
    except (metadata.PackageNotFoundError, ValueError, KeyError, TypeError):
        return ""
