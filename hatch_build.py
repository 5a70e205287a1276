"""Note the git commit in the wheel, where it is built from a clone."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CommitHook(BuildHookInterface):
    """Add ``midstream/_shipped/commit`` to the wheel."""

    _file = ""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the commit into a temporary file, and have it included; an editable wheel needs none."""
        if version == "editable":
            return
        commit = self._git("rev-parse", "--short=12", "HEAD") if (Path(self.root) / ".git").exists() else ""
        if not commit:
            return
        changed = self._git("status", "--porcelain", "--untracked-files=no")
        with tempfile.NamedTemporaryFile("w", prefix="midstream-commit-", delete=False) as file:
            file.write(f"{commit}, changed\n" if changed else f"{commit}\n")
        self._file = file.name
        build_data["force_include"][file.name] = "midstream/_shipped/commit"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Remove the temporary file."""
        if self._file:
            Path(self._file).unlink(missing_ok=True)

    def _git(self, *arguments: str) -> str:
        try:
            done = subprocess.run(["git", "-C", self.root, *arguments], capture_output=True, text=True, check=False)
        except OSError:
            return ""
        return done.stdout.strip() if done.returncode == 0 else ""
