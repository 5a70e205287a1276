"""What counts as contact with a host: deadlines of a process that was stopped, and calls whose answer was lost."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import midstream
from midstream.errors import HostError, LostContact, RemoteError
from midstream.fleet.fleet import LocalHost
from midstream.hosts import deadline
from midstream.hosts.deadline import LONGEST_STEP, Deadline
from midstream.hosts.host import Completed
from midstream.hosts.local_host import LocalMachine
from midstream.hosts.rpc import remote_call
from midstream.hosts.rpc.repeatable_calls import ONCE, REPEATABLE
from midstream.remote.runs import attempts, ownership, run_state
from midstream_engine import records
from support.run_directory import RunDirectory

APP = Path(midstream.__file__).parent
# These own stdin and stdout; whoever started one goes on where it was.
PROGRAMS = {
    "copy.session.serve", "verify.array_check.examine", "machine.environments.build", "gcs.session.serve",
    "gcs.receiver.receive",
    "gcs.sender.send", "copy.growing_checkpoint.follow", "machine.network.listen", "copy.tls_peer.answer",
    "machine.probe.main", "copy.disk_receiver.receive",
    "copy.sender.send", "verify.tree.verify",
}  # fmt: skip


class Clock:
    """The monotonic clock of a process that may be stopped."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.now = 1000.0
        monkeypatch.setattr(deadline, "time", SimpleNamespace(monotonic=lambda: self.now))


def test_time_in_which_the_process_did_not_run_does_not_count(monkeypatch: pytest.MonkeyPatch):
    clock = Clock(monkeypatch)
    limit = Deadline(60.0)
    clock.now += 73.0  # stopped, or the laptop slept
    assert not limit.count()
    assert limit.spent == LONGEST_STEP
    reached = []
    for _ in range(57):
        clock.now += 1.0
        reached.append(limit.count())
    assert reached == [*[False] * 56, True]


def test_time_without_contact_can_be_left_out(monkeypatch: pytest.MonkeyPatch):
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


class Host(LocalMachine):
    """This machine, which loses contact in the middle of its next calls: some of them were carried out."""

    def __init__(self, root: Path, *, losses: int, carried_out: bool):
        super().__init__("here", LocalHost(root=str(root)))
        self.losses, self.carried_out, self.calls, self.connected = losses, carried_out, 0, 0

    def connect(self) -> None:
        self.connected += 1

    def run(self, *arguments: Any, **named: Any) -> Completed:
        self.calls += 1
        if self.calls <= self.losses:
            if self.carried_out:
                super().run(*arguments, **named)
            raise LostContact("here: lost contact")
        return super().run(*arguments, **named)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_call, "PAUSE", 0.0)


def test_a_call_whose_answer_was_lost_is_repeated_after_connecting_again(tmp_path: Path):
    host = Host(tmp_path, losses=remote_call.TRIES - 1, carried_out=False)
    assert host.call("runs.run_state.list_runs", root=host.root) == []
    assert (host.calls, host.connected) == (remote_call.TRIES, remote_call.TRIES - 1)


def test_a_call_is_repeated_a_bounded_number_of_times(tmp_path: Path):
    host = Host(tmp_path, losses=100, carried_out=False)
    with pytest.raises(LostContact):
        host.call("runs.run_state.list_runs", root=host.root)
    assert host.calls == remote_call.TRIES


def test_a_function_that_is_not_listed_is_called_once(tmp_path: Path):
    host = Host(tmp_path, losses=1, carried_out=False)
    with pytest.raises(LostContact):
        host.call("runs.leftovers.remove", root=host.root, run_id="r", names=[])
    assert host.calls == 1


def test_an_answer_that_breaks_off_is_a_lost_contact_and_an_error_of_the_function_is_not(tmp_path: Path):
    class Killed(Host):
        def run(self, *arguments: Any, **named: Any) -> Completed:
            super().run(*arguments, **named)
            return Completed(-9, b'{"value": [', b"")

    host = Killed(tmp_path, losses=0, carried_out=False)
    with pytest.raises(LostContact, match="ended by signal 9 before it answered"):
        host.call("runs.run_state.list_runs", root=host.root)
    assert host.calls == remote_call.TRIES
    whole = Host(tmp_path, losses=0, carried_out=False)
    with pytest.raises(RemoteError):
        whole.call("runs.run_state.read_text", path=f"{tmp_path}/nothing")
    assert whole.calls == 1


def test_a_timeout_is_a_lost_contact(tmp_path: Path):
    host = LocalMachine("here", LocalHost(root=str(tmp_path)))
    with pytest.raises(LostContact, match="did not end within 0 s"):
        host.run(["sleep", "60"], timeout=0.2)
    with pytest.raises(HostError):
        host.open(["/nowhere"])


# ------------------------------------------------------------------------------- functions that act, called twice


def order(action: str, **fields: Any) -> dict[str, Any]:
    return records.Command(action, epoch=1, migration="m", **fields).to_json()


def status(run: RunDirectory, state: str, *, order: int = 0, alive: bool = True) -> None:
    """Of attempt 1, which claims to be this process, or one that has exited."""
    identity = records.this_process() if alive else records.ProcessIdentity("another boot", 1, 1)
    run.status(1, state, 5, identity)
    path = run.paths.attempt(1).status()
    records.write_json(path, {**records.read_json(path), "acknowledged": order})


def test_an_order_that_was_given_twice_is_one_order(tmp_path: Path):
    run = RunDirectory(tmp_path, "r")
    run.fence(1, "a")
    status(run, records.TRAINING)
    root = str(tmp_path)
    first = ownership.send_command(root, "r", 1, order(records.SAVE))
    assert ownership.send_command(root, "r", 1, order(records.SAVE)) == first, "it is not answered yet"
    assert ownership.send_command(root, "r", 1, order(records.STOP)) == first + 1, "another one is another one"
    status(run, records.TRAINING, order=first + 1)
    assert ownership.send_command(root, "r", 1, order(records.STOP)) == first + 2, "answered: it is wanted once more"
    status(run, records.STOPPED, order=first + 2, alive=False)
    assert ownership.send_command(root, "r", 1, order(records.STOP)) == first + 2, (
        "nobody is there to carry out another one"
    )


def test_an_attempt_that_was_started_twice_is_one_process(tmp_path: Path):
    run = RunDirectory(tmp_path, "r")
    run.fence(1, "a")
    Path(run.paths.config).write_text("{}\n")
    root = str(tmp_path)
    number = run_state.claim_attempt(root, "r")
    words = {"argv": ["sleep", "60"], "env": {}}
    started = attempts.start(root, "r", number, **words)
    try:
        assert attempts.start(root, "r", number, **words) == started
        other = run_state.claim_attempt(root, "r")
        with pytest.raises(run_state.Refused):
            attempts.start(root, "r", other, **words)
    finally:
        run_state.signal(root, "r", number, "SIGKILL")


def test_a_job_that_was_submitted_twice_is_one_job(tmp_path: Path):
    run = RunDirectory(tmp_path, "r")
    run.fence(1, "a")
    root = str(tmp_path)
    number = run_state.claim_attempt(root, "r")
    records.write_json(f"{run.paths.attempt(number).dir}/slurm.json", {"job": "17", "submitted": 0.0})
    assert attempts.submit(root, "r", number, [], "", "") == "17", "sbatch is not called: there is none here"


# ------------------------------------------------------------------------------------------------- what is listed


def test_every_function_that_is_called_on_a_host_is_repeatable_or_is_not():
    assert not REPEATABLE & ONCE
    for name in REPEATABLE | ONCE:
        module, _, function = name.rpartition(".")
        assert callable(getattr(importlib.import_module(f"midstream.remote.{module}"), function)), name
    called = set()
    for path in APP.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                called |= set(re.findall(r"^[a-z_]+\.[a-z_]+\.[a-z_]+$", node.value))
    modules = {
        ".".join(path.relative_to(APP / "remote").with_suffix("").parts) for path in (APP / "remote").rglob("*.py")
    }
    known = {name for name in called if name.rpartition(".")[0] in modules and _exists(name)}
    assert known - REPEATABLE - ONCE == PROGRAMS


def _exists(name: str) -> bool:
    module, _, function = name.rpartition(".")
    return hasattr(importlib.import_module(f"midstream.remote.{module}"), function)
