"""Run several attempts of the engine in one process, which imports its packages once."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from support.engines.engine_runs import environment

_SCRIPT = """
import json, logging, sys
from midstream_engine.train import main
codes = []
for arguments in json.loads(sys.argv[1]):
    codes.append(main(arguments))
    for handler in logging.getLogger().handlers[:]:
        logging.getLogger().removeHandler(handler)
print(json.dumps(codes))
"""


def train_all(
    root: Path, runs: Sequence[Sequence[str]], *, devices: int = 1, cwd: Path | None = None, **extra: str
) -> tuple[list[int], str]:
    """Train ``runs`` (arguments of ``midstream_engine.train``) in order. Returns their exit codes, and the log."""
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, json.dumps([list(map(str, run)) for run in runs])],
        env=environment(root, devices, extra),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=540,
    )
    if done.returncode:
        raise AssertionError(f"the engine's process ended with {done.returncode}:\n{done.stderr}")
    logging.getLogger(__name__).info(done.stderr)
    return json.loads(done.stdout.splitlines()[-1]), done.stderr
