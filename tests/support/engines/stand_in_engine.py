"""A stand-in for the engine's package, for tests of starting and stopping.

It writes the engine's statuses and handles its signals, and can fail on request.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import midstream_core

TRAIN = """
import dataclasses, json, os, signal, sys, threading, time
from midstream_core import records

flags = dict(zip(sys.argv[1::2], sys.argv[2::2]))
number = int(os.environ["MIDSTREAM_ATTEMPT"])
process = int(flags.get("--trainer.distributed.process_id", 0))
processes = int(flags.get("--trainer.distributed.num_processes", 1))
paths = records.RunPaths(os.environ["MIDSTREAM_ROOT"], os.environ["RUN_ID"]).attempt(number)
me = records.this_process()
stop_requested = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop_requested.set())


def say(state, step=0, message=""):
    status = records.Status(state, step, process, me.boot_id, me.pid, me.start_ticks, time.time(), attempt=number)
    dataclasses.replace(status, message=message, processes=processes).write(paths.status(process))


print(json.dumps({"flags": flags, "env": dict(os.environ)}), flush=True)
say(records.STARTING)
fail = flags.get("--fail") if flags.get("--fail-process", str(process)) == str(process) else None
if fail == "early":
    raise RuntimeError("the device is used by another process")
if fail == "reported":
    say(records.FAILED, message="the batch does not divide")
    sys.exit(1)
step = 0
while not stop_requested.wait(0.02) and not os.path.exists(os.path.join(paths.dir, "finish")):
    step += not os.path.exists(os.path.join(paths.dir, "stand"))
    say(records.TRAINING, step)
say(records.STOPPED if stop_requested.is_set() else records.FINISHED, step)
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the interpreter's end would make it deadly again
"""


def write_stand_in(directory: Path) -> Path:
    """Write the packages into ``directory``, and return it."""
    present = Path(midstream_core.__file__).parents[1]
    for name in ("midstream_core", "midstream_host"):
        shutil.copytree(present / name, directory / name, ignore=shutil.ignore_patterns("__pycache__"))
    package = directory / "midstream_engine"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "train.py").write_text(TRAIN)
    return directory
