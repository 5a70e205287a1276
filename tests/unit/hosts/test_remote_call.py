"""Contact with a host: deadlines while suspended, and calls with lost answers."""

from __future__ import annotations

import ast
import importlib
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import midstream
import midstream_core
from midstream.fleet.fleet import LocalHostConfig
from midstream.hosts import deadline
from midstream.hosts.deadline import MAX_STEP, Deadline
from midstream.hosts.local_host import LocalHost
from midstream.hosts.rpc import remote_call
from midstream_core import records
from midstream_host.declarations import Declaration, declaration_of
from midstream_host.runs import attempts, ownership, run_state
from support.remote_functions import declared_functions, function_of
from support.run_directory import RunDirectory

APP = Path(midstream.__file__).parent
ENGINE = Path(midstream_core.__file__).parents[1]


class Clock:
    """The monotonic clock of a process that may be suspended."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(deadline, "time", SimpleNamespace(monotonic=lambda: self.now))


def test_deadline_excludes_time_while_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    limit = Deadline(60.0)
    clock.now += 73.0  # SIGSTOP, or a suspended laptop
    assert not limit.count()
    assert limit.spent == MAX_STEP
    reached = []
    for _ in range(57):
        clock.now += 1.0
        reached.append(limit.count())
    assert reached == [*[False] * 56, True]


def test_deadline_can_skip_time_without_contact(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    limit = Deadline(2.0)
    for _ in range(100):
        clock.now += 1.0
        assert not limit.skip()
    clock.now += 1.0
    assert not limit.count()
    clock.now += 1.0
    assert limit.count()
    assert not Deadline(None).count()


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_call, "CALL", replace(remote_call.CALL, first_delay=0.0))


# ------------------------------------------------------------------------------- functions that act, called twice


def command(action: str, **fields: Any) -> dict[str, Any]:
    return records.Command(action, epoch=1, migration="m", **fields).to_json()


def status(run: RunDirectory, state: str, *, acknowledged: int = 0, running: bool = True) -> None:
    """Write the status of attempt 1: this process, or an exited one."""
    identity = records.this_process() if running else records.ProcessIdentity("another boot", 1, 1)
    run.status(1, state, 5, identity)
    path = run.paths.attempt(1).status()
    records.write_json(path, {**records.read_json(path), "acknowledged": acknowledged})


def test_send_command_twice_is_one_command(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path, "r")
    run.fence(1, "a")
    status(run, records.TRAINING)
    root = str(tmp_path)
    first = ownership.send_command(root, "r", 1, command(records.SAVE))
    assert ownership.send_command(root, "r", 1, command(records.SAVE)) == first, "the first is not acknowledged yet"
    assert ownership.send_command(root, "r", 1, command(records.STOP)) == first + 1, "another action is another command"
    status(run, records.TRAINING, acknowledged=first + 1)
    assert ownership.send_command(root, "r", 1, command(records.STOP)) == first + 2, (
        "acknowledged: a repetition is a new command"
    )
    status(run, records.STOPPED, acknowledged=first + 2, running=False)
    assert ownership.send_command(root, "r", 1, command(records.STOP)) == first + 2, (
        "no process is running that could execute another command"
    )


def test_start_twice_is_one_process(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path, "r")
    run.fence(1, "a")
    Path(run.paths.config).write_text("{}\n")
    root = str(tmp_path)
    number = run_state.claim_attempt(root, "r")
    process = {"argv": ["sleep", "60"], "env": {}}
    started = attempts.start(root, "r", number, **process)
    try:
        assert attempts.start(root, "r", number, **process) == started
        other = run_state.claim_attempt(root, "r")
        with pytest.raises(run_state.RefusedError):
            attempts.start(root, "r", other, **process)
    finally:
        run_state.signal(root, "r", number, "SIGKILL")


def test_submit_twice_is_one_job(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path, "r")
    run.fence(1, "a")
    root = str(tmp_path)
    number = run_state.claim_attempt(root, "r")
    records.write_json(f"{run.paths.attempt(number).dir}/slurm.json", {"job": "17", "submitted": 0.0})
    assert attempts.submit(root, "r", number, [], "", "") == "17", "sbatch is not called: this machine has none"


# ---------------------------------------------------------------------------------------------- declarations


@pytest.mark.long
def test_every_called_remote_function_is_declared() -> None:
    """Each function that the app passes to ``call`` is declared in `midstream_host`."""
    called = _called()
    assert len(called) > 60
    for name in called:
        declaration = declaration_of(function_of(name))
        assert declaration is not None
        assert declaration.reason


@pytest.mark.long
def test_every_declared_remote_function_is_called() -> None:
    declared = {remote_call.name_of(function) for function in declared_functions()}
    assert declared == _called()


def _called() -> set[str]:
    """Return the functions of `midstream_host` that the rest of the app names."""
    found = set()
    for path in APP.rglob("*.py"):
        tree = ast.parse(path.read_text())
        modules = {
            alias.asname or alias.name: f"{node.module}.{alias.name}".removeprefix("midstream_host.")
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("midstream_host.")
            for alias in node.names
        }
        for node in ast.walk(tree):
            name = ""
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
                name = f"{modules[node.value.id]}.{node.attr}"
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                name = node.value if re.fullmatch(r"([a-z_]+\.){2,}[a-z_]+", node.value) else ""
            module, _, function = name.rpartition(".")
            if "." in module and (ENGINE / "midstream_host" / (module.replace(".", "/") + ".py")).is_file():
                value = getattr(importlib.import_module(f"midstream_host.{module}"), function, None)
                if isinstance(getattr(value, "declaration", None), Declaration):
                    found.add(name)
    return found


def test_undeclared_function_is_rejected(tmp_path: Path) -> None:
    host = LocalHost("here", LocalHostConfig(root=str(tmp_path)))
    with pytest.raises(ValueError, match=r"is not a declared function of midstream_host"):
        host.call(run_state.processes)
    with pytest.raises(TypeError, match="missing a required argument: 'root'"):
        host.call(run_state.list_runs)()  # type: ignore[call-arg]


@pytest.mark.long
def test_scan_for_imports_finds_what_the_parser_finds() -> None:
    """Modules are sent by what the scan finds: of everything that may be sent, it finds all and nothing else."""
    for path in [*ENGINE.glob("midstream_core/**/*.py"), *ENGINE.glob("midstream_host/**/*.py")]:
        text = path.read_text()
        nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom) and node.module]
        sent = ("midstream_host", "midstream_core")
        found = {
            below if remote_call._source(below).is_file() else str(node.module)
            for node in nodes
            if str(node.module).startswith(sent)
            for below in (f"{node.module}.{alias.name}" for alias in node.names)
        }
        assert set(remote_call._imports(text)) == found, path
