"""Check of a checkpoint's arrays on its host, by an engine or standard library.

Lines: ``array`` with ``name``, ``norm`` and ``not_finite``, ``checked`` with ``path`` and ``bytes``, at the end
``verified`` or ``problem`` as of ``verify.tree.verify``, with ``by``: the engine or the standard library.
"""

from __future__ import annotations

import json
import os
import posixpath
import subprocess
import sys
from typing import Any, Dict, Iterator, List, Optional, Tuple

from midstream_host.declarations import program
from midstream_host.object_files import emit, end_with_operator
from midstream_host.verify import decode

ENGINE = "midstream_engine.checkpoint"


@program
def examine(directory: str, root: str, deep: bool = True, engine: bool = True) -> int:
    """Check the arrays of the checkpoint in ``directory``.

    A program. ``directory`` may be the URL of a bucket, which needs an engine on this host. ``engine``: False for the
    standard library.
    """
    end_with_operator()
    engine_found = find_engine(root) if engine else None
    if engine_found is None and directory.startswith(("gs://", "s3://")):
        emit("problem", kind="engine", message="no engine on this host can read {}".format(directory))
        return 1
    if engine_found is None:
        return decode.examine(directory)
    python, path = engine_found
    argv = [python, "-P", "-m", ENGINE, directory, "--json"] + (["--deep"] if deep else [])
    child = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=_environment(path), cwd="/")
    assert child.stdout is not None
    assert child.stderr is not None
    last: Dict[str, Any] = {}
    for line in child.stdout:
        last = json.loads(line)
        event = last.pop("event")
        emit(event, by="engine", **last)
        last["event"] = event
    lines = child.stderr.read().decode(errors="replace").strip().splitlines()
    child.wait()
    if last.get("event") not in ("verified", "problem"):
        message = lines[-1] if lines else "it ended with {}".format(child.returncode)
        emit("problem", kind="engine", message="{}: {}".format(directory, message))
        return 1
    return 0


def find_engine(root: str) -> Optional[Tuple[str, Optional[str]]]:
    """Find an engine, in this interpreter or under ``root``.

    Return (interpreter, PYTHONPATH).
    """
    for python, path in _candidates(root):
        check = [python, "-P", "-c", "import {}.loading.verify".format(ENGINE)]
        try:
            done = subprocess.run(check, env=_environment(path), cwd="/", stdin=subprocess.DEVNULL,
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60)  # fmt: skip
        except (OSError, subprocess.TimeoutExpired):
            continue
        if done.returncode == 0:
            return python, path
    return None


def _candidates(root: str) -> Iterator[Tuple[str, Optional[str]]]:
    yield sys.executable, None
    engines, environments = _newest(root, "engines"), _newest(root, "envs")
    for engine in engines[:1]:
        for environment in environments[:3]:
            yield posixpath.join(environment, "bin", "python"), engine


def _newest(root: str, folder: str) -> List[str]:
    """Complete directories of ``folder``, the newest first."""
    try:
        names = os.listdir(posixpath.join(root, folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
    stamped: List[Tuple[float, str]] = []
    for name in names:
        directory = posixpath.join(root, folder, name)
        stamp = posixpath.join(directory, ".complete.json")
        if os.path.exists(stamp):
            stamped.append((os.stat(stamp).st_mtime, directory))
    return [directory for _, directory in sorted(stamped, reverse=True)]


def _environment(path: Optional[str]) -> Dict[str, str]:
    result = dict(os.environ)
    result.pop("PYTHONPATH", None)
    if path is not None:
        result["PYTHONPATH"] = path
    return result
