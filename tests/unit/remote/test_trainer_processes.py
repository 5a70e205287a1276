"""Processes that work in a directory, as `--init-run` and `--adopt` find them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from midstream.remote.trainers.processes import look
from support.paths import REPOSITORY

LOOK = """
import json
from midstream.remote.trainers.processes import look
print(json.dumps([process.pid for process in look({!r}).processes]))
"""


def test_look_leaves_out_the_command_that_calls_it(tmp_path: Path) -> None:
    trainer = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], cwd=tmp_path)
    try:
        # As `midstream --init-run .` in that directory: a command of Python, whose child looks.
        child = LOOK.format(str(tmp_path))
        command = f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', {child!r}]))"
        argv = [sys.executable, "-c", command]
        where = os.pathsep.join(str(REPOSITORY / name) for name in ("app", "engine"))
        said = subprocess.run(
            argv, cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": where}
        )
        assert json.loads(said.stdout) == [trainer.pid], said.stderr
        assert [each.pid for each in look(str(tmp_path)).processes] == [trainer.pid]
    finally:
        trainer.kill()
        trainer.wait()
