"""A project's ``uv.lock`` as pip's requirements with hashes, which hosts install."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from midstream.errors import UsageError
from midstream.printable import printable
from midstream_host.driver.run_file import MAX_LOCK

NAME = "uv.lock"
TIMEOUT = 60.0  # seconds: uv reads the lock alone, without a registry
_OPTIONS = ("--frozen", "--offline", "--quiet", "--no-emit-project", "--no-header", "--no-annotate")


def requirements_of(file: Path) -> str:
    """Return the requirements of a ``uv.lock``, with their hashes.

    The project itself is not among them; its groups that ``uv sync`` would install are. uv has to be on the path of
    this machine.

    Raises:
        UsageError: There is no uv, it cannot read the lock, or the lock names no package.
    """
    uv = shutil.which("uv")
    if uv is None:
        raise UsageError(
            f"{file} is read by uv, which is not installed here",
            "pip install uv, or elsewhere: uv export --frozen --no-emit-project -o requirements.txt, then "
            "environment: {lock: requirements.txt}",
        )
    try:
        done = subprocess.run(
            [uv, "export", *_OPTIONS, "--project", str(file.parent.resolve())],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=TIMEOUT,
            cwd=file.parent,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{file}: uv export: {error}") from None
    text = done.stdout.decode("utf-8", "replace")
    if done.returncode:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines() or [f"uv ends with {done.returncode}"]
        what = next((line for line in lines if line.startswith("error:")), lines[-1])
        raise UsageError(f"{file}: {printable(what.removeprefix('error: '))}", f"uv lock --project {file.parent}")
    if "--hash=" not in text:
        raise UsageError(f"{file}: no package with a hash is in it", f"uv lock --project {file.parent}")
    if len(text) > MAX_LOCK:
        raise UsageError(f"{file}: {len(text)} characters of requirements, allowed are {MAX_LOCK}")
    return text
