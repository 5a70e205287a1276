"""The loss of one answer in a migration's process: of a call that has changed something on a host.

The call is carried out. Then its answer is lost together with those of the call's repetitions, or the process is
killed before it journals anything.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

KILL, LOSE = "kill", "lose"

# Loaded by the interpreter of the migration's process, before its program.
CUSTOMIZE = """
import json, os, signal, sys, threading

HERE = os.path.dirname(__file__)


def plant(name, before, how):
    import importlib
    from midstream.errors import ConnectionLostError
    from midstream.hosts.rpc import remote_call
    from midstream_host.declarations import declaration_of

    read, lock, seen, lost = remote_call._answer, threading.Lock(), {}, []

    def changes(function):
        module, _, short = ("midstream_host." + function).rpartition(".")
        declared = declaration_of(getattr(importlib.import_module(module), short))
        return declared.reason not in ("it only reads", "it streams") and short != "renew"  # it has no order

    def answer(host, python, function, done):
        result = read(host, python, function, done)
        if not changes(function):
            return result
        with lock:
            if lost:
                if lost[0] != function or len(lost) > remote_call.CALL.tries:
                    return result
                lost.append(function)
            else:
                seen[function] = seen.get(function, 0) + 1
                call = f"{function} {seen[function]}"
                if call in before or name not in ("", function):
                    return result
                with open(os.path.join(HERE, "struck"), "w") as file:
                    file.write(call)
                lost.append(function)
                if how == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
        raise ConnectionLostError(f"{host.name}: the connection was lost")

    remote_call._answer = answer


if "midstream.migrate.migration_process" in sys.orig_argv:
    if not os.path.exists(os.path.join(HERE, "struck")):
        with open(os.path.join(HERE, "fault.json")) as file:
            plant(**json.load(file))
"""


@dataclass(frozen=True)
class LostAnswer:
    """The fault of the migrations that are started with `environment`; it strikes once."""

    directory: Path

    @property
    def environment(self) -> str:
        """PYTHONPATH of a program that starts the migration."""
        return os.pathsep.join(filter(None, (str(self.directory), os.environ.get("PYTHONPATH"))))

    @property
    def call(self) -> str:
        """The call whose answer was lost: its function, and which call of it; empty if it has not struck."""
        path = self.directory / "struck"
        return path.read_text() if path.exists() else ""

    @property
    def struck(self) -> str:
        """The function whose answer was lost; empty if it has not struck."""
        return self.call.partition(" ")[0]


def lost_answer(directory: Path, how: str, function: str = "", before: Collection[str] = ()) -> LostAnswer:
    """Prepare the loss of an answer: of the first call that changes something.

    Args:
        directory: New directory for the fault's files.
        how: `LOSE`, or `KILL`: the process is killed there.
        function: Only calls of this function.
        before: Calls that are left alone, each as `LostAnswer.call` names it. A place in the order of all calls names
            none: a migration to a host that has the engine makes other calls than the first one to it.
    """
    directory.mkdir(parents=True)
    (directory / "sitecustomize.py").write_text(CUSTOMIZE)
    (directory / "fault.json").write_text(json.dumps({"name": function, "before": sorted(before), "how": how}))
    return LostAnswer(directory)
