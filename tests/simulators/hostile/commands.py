"""Runs midstream commands one after the other, each in a fork of one process that has imported everything.

Reads JSON lines ``{argv, cwd, env, stdout, stderr, deadline}`` and answers each with ``{code, seconds, peak, late}``:
the exit code, the most memory (KiB) that the process or a child of it had, and whether the deadline had to end it.
``argv`` is what the command line gets; ``["copy", KIND, FLEET, SOURCE, TARGET, RUN, WHAT]`` calls the functions of
`midstream.transfer` that a migration calls, ``["call", NAME, FLEET]`` one of `operator_calls`.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))  # as a script

PRELOADED = (
    "midstream.cli", "midstream.headless", "midstream.headless.status",
    "midstream.headless.migrate_run",
    "midstream.hosts.host_pool",
    "midstream.hosts.ssh.ssh_host", "midstream.hosts.local_host", "midstream.fleet.fleet_file",
    "midstream.watch.watcher",
    "midstream.transfer",
    "midstream.migrate.planning.planner", "midstream.migrate.planning.preflight",
    "midstream.migrate.migration_process", "midstream.check.target_checks",
    "midstream.watch.resolved_config", "midstream.operations.examine_checkpoint",
    "midstream.launch.attempt_monitor",
    "midstream.launch.launch_run",
    "midstream.migrate.journal.migration_directory", "yaml", "paramiko", "cryptography.x509",
    "concurrent.futures.thread", "simulators.hostile.operator_calls",
)  # fmt: skip


def main() -> None:
    for name in PRELOADED:
        importlib.import_module(name)
    for line in sys.stdin:
        print(json.dumps(_run(json.loads(line))), flush=True)


def _run(job: dict[str, Any]) -> dict[str, Any]:
    began = time.monotonic()
    pid = os.fork()
    if not pid:
        _child(job)
    late = False
    while True:
        ended, status, usage = os.wait4(pid, os.WNOHANG)
        if ended:
            break
        if time.monotonic() - began > job["deadline"] and not late:
            late = True
            os.kill(pid, signal.SIGUSR1)  # every thread's stack goes to its stderr
            time.sleep(0.5)
            os.killpg(pid, signal.SIGKILL)
        time.sleep(0.005)
    return {
        "code": os.waitstatus_to_exitcode(status), "seconds": round(time.monotonic() - began, 2),
        "peak": usage.ru_maxrss, "late": late,
    }  # fmt: skip


def _child(job: dict[str, Any]) -> None:
    """Run the command in the forked child. Never returns."""
    import faulthandler

    code = 70
    try:
        os.setsid()
        for number, (path, flags) in enumerate(
            (
                (os.devnull, os.O_RDONLY),
                (job["stdout"], os.O_WRONLY | os.O_CREAT),
                (job["stderr"], os.O_WRONLY | os.O_CREAT),
            )
        ):
            os.dup2(os.open(path, flags, 0o600), number)
        # The encodings of a user's terminal: the command itself must escape what they cannot represent.
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
        faulthandler.enable(sys.stderr)
        faulthandler.register(signal.SIGUSR1, sys.stderr)
        os.environ.clear()
        os.environ.update(job["env"])
        os.chdir(job["cwd"])
        code = _command(job["argv"])
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:  # noqa: BLE001  as the interpreter would
        traceback.print_exc()
        code = 1
    finally:
        for thread in threading.enumerate():  # as the interpreter does at its end
            if thread is not threading.main_thread() and not thread.daemon:
                thread.join()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


def _command(argv: list[str]) -> int:
    if argv[0] == "copy":
        return _copy(*argv[1:])
    if argv[0] == "call":
        return _call(*argv[1:])
    from midstream.cli import main as command_line

    return command_line(argv)


def _call(name: str, fleet_file: str) -> int:
    """Let the app meet the answer of one function, with errors as the command line shows them."""
    from midstream.errors import MidstreamError
    from midstream.fleet.fleet_file import load_fleet
    from midstream.hosts.host_pool import HostPool
    from midstream.output import Output
    from simulators.hostile.operator_calls import Operator, call

    fleet = load_fleet(fleet_file)
    hosts = HostPool(fleet)
    try:
        call(Operator(fleet, hosts), name)
    except MidstreamError as error:
        Output(False).error(error)
        return int(error.code)
    finally:
        hosts.close()
    return 0


def _copy(kind: str, fleet_file: str, source: str, target: str, run: str, what: str) -> int:
    """Run one of a migration's copies, with errors as the command line shows them."""
    from midstream.errors import MidstreamError
    from midstream.fleet.fleet_file import load_fleet
    from midstream.hosts.host_pool import HostPool
    from midstream.migrate import host_files
    from midstream.output import Output
    from midstream.transfer.copy_history import copy_history
    from midstream.transfer.copy_tree import copy_tree
    from midstream.transfer.endpoint import Endpoint
    from midstream_core import records

    hosts = HostPool(load_fleet(fleet_file))
    try:
        one, two = hosts.get(source), hosts.get(target)
        if kind == "history":
            copy_history(one, two, run, source_root=one.root, target_root=two.root)
        elif kind == "checkpoint":
            here, there = (records.RunPaths(host.root, run).checkpoint(what) for host in (one, two))
            copy_tree(Endpoint(one, here), Endpoint(two, there))
        else:
            copy_tree(
                Endpoint(one, host_files.data_directory(one, what)),
                Endpoint(two, host_files.data_directory(two, what)),
                kind="data",
            )
    except MidstreamError as error:
        Output(False).error(error)
        return int(error.code)
    except records.RecordError as error:
        Output(False).error(MidstreamError(str(error)))
        return 1
    finally:
        hosts.close()
    return 0


if __name__ == "__main__":
    main()
