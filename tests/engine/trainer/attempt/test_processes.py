"""An attempt of several processes: the same run as of one process, and one outcome for all."""

from __future__ import annotations

import re
import signal
import socket
import threading
from pathlib import Path
from typing import Any

import jax
import pytest

from midstream_engine import records
from midstream_engine.checkpoint.loading.checkpoint_records import read_manifest
from midstream_engine.checkpoint.loading.verify import verify_checkpoint
from midstream_engine.config.distributed import DistributedConfig
from midstream_engine.config.errors import ConfigError
from midstream_engine.errors import EngineError
from midstream_engine.processes import rendezvous
from midstream_engine.processes.coordinator_client import (
    CoordinatorClient,
    PeerLostError,
    _connect,
    connect_to_coordinator,
)
from midstream_engine.processes.frames import Channel, Message
from midstream_engine.processes.rendezvous import Processes
from midstream_engine.processes.shared_file_systems import find_shared_file_systems
from support.engines.engine_processes import Together, free_port, rows
from support.engines.engine_runs import Engine, held

pytestmark = pytest.mark.drawn

# Far more steps than a test waits for: the test ends each attempt itself, on fast and slow machines.
FLAGS = [
    "--trainer.num_train_steps", "5000", "--trainer.checkpointer.keep", "[{every: 10}]",
    "--trainer.steps_per_eval", "5", "--data.validation_urls", "stdlib:json/tool.py",
]  # fmt: skip
TRACKERS = "[{{type: tensorboard, logdir: {}}}, {{type: wandb, mode: offline, save_code: false}}]"


# The first test waits for three attempts, which is long on a busy machine.
long = pytest.mark.timeout(1200)


def statuses(paths: records.RunPaths, attempt: int, count: int = 2) -> list[records.Status]:
    return [records.Status.read(paths.attempt(attempt).status(process)) for process in range(count)]


# ---------------------------------------------------------------------------------------------------- the coordinator


def meet(count: int, timeout: float = 5.0) -> list[CoordinatorClient]:
    """Connect ``count`` processes, which are threads here."""
    address, clients = f"127.0.0.1:{free_port()}", {}

    def join(process: int) -> None:
        clients[process], _ = connect_to_coordinator(
            address,
            process,
            count,
            host=f"host-{process}",
            token="t",
            join_timeout=20,
            heartbeat_timeout=timeout,
            welcome=dict,
        )

    threads = [threading.Thread(target=join, args=(process,)) for process in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [clients[process] for process in range(count)]


def test_coordinator_delivers_messages_once_and_in_order() -> None:
    first, second, third = meet(3)
    first.send("x", b"1")
    first.send("x", b"2" * (3 << 20))
    third.send("y", b"for two", to=1)
    assert [client.receive("x", 0) for client in (second, third)] == [b"1", b"1"]
    assert len(second.receive("x", 0)) == 3 << 20
    assert second.receive("y", 2) == b"for two"
    with pytest.raises(PeerLostError, match=r"process 2 \(host-2, pid \d+\) did not send 'y' within 0 s"):
        first.receive("y", 2, timeout=0.2)
    for client in (third, second, first):
        client.close()


def test_coordinator_names_exited_process_with_last_message() -> None:
    clients, failures = meet(3), []
    clients[0].on_failure(failures.append)
    clients[1].report_failure("its disk is full")
    clients[1].close()
    with pytest.raises(PeerLostError, match=r"^process 1 \(host-1, pid \d+\) failed: its disk is full$"):
        clients[2].receive("x", 1)
    assert clients[0].wait_for_failure(20) == clients[2].first_failure()
    clients[0].close()
    with pytest.raises(PeerLostError, match="process 1 "):  # the first that went is the one to name
        clients[2].exchange("x", b"")
    clients[2].close()
    assert len(failures) == 1


def test_coordinator_client_that_closes_ends_its_waits() -> None:
    """A save waits on a thread of its own."""
    clients, errors = meet(2), list[str]()

    def wait() -> None:
        with pytest.raises(PeerLostError) as raised:
            clients[1].receive("x", 0)
        errors.append(str(raised.value))

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    clients[1].close()
    thread.join(60)
    assert errors == ["this process has disconnected from the others"]
    with pytest.raises(PeerLostError, match="this process has disconnected"):
        clients[1].receive_any("x")
    with pytest.raises(PeerLostError, match="this process has disconnected"):
        clients[1].send("x", b"")
    clients[0].close()


def test_coordinator_exit_message_reaches_all() -> None:
    clients = meet(3)
    clients[0].report_failure("the loss is NaN")
    clients[0].close()
    for client in clients[1:]:
        assert re.fullmatch(r"process 0 \(host-0, pid \d+\) failed: the loss is NaN", client.wait_for_failure(20))
        client.close()


def test_coordinator_timeouts_name_missing_processes() -> None:
    clients = meet(2, timeout=0.6)
    clients[1]._leaving.set()  # it sends no heartbeats any more
    assert re.search(r"process 1 .* failed: no heartbeat for 1 s", clients[0].wait_for_failure(20))
    for client in clients:
        client.close()
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(
        EngineError, match=r"processes 1, 2 of 3 did not connect within 1 s \(hint: read the log of each\)"
    ):
        connect_to_coordinator(address, 0, 3, host="a", token="", join_timeout=1, heartbeat_timeout=5, welcome=dict)
    with pytest.raises(EngineError, match=rf"process 1 of 3 cannot connect to process 0 at {address} .*refused"):
        connect_to_coordinator(address, 1, 3, host="b", token="", join_timeout=1, heartbeat_timeout=5, welcome=dict)


def test_coordinator_refuses_process_of_another_attempt() -> None:
    address = f"127.0.0.1:{free_port()}"
    said: list[str] = []

    def lead() -> None:
        try:
            connect_to_coordinator(
                address, 0, 2, host="a", token="r/2", join_timeout=3, heartbeat_timeout=5, welcome=dict
            )
        except EngineError as error:
            said.append(str(error))

    thread = threading.Thread(target=lead)
    thread.start()
    with pytest.raises(EngineError, match=r"process 1 was rejected: it belongs to another attempt than 'r/2'"):
        connect_to_coordinator(address, 1, 2, host="b", token="r/1", join_timeout=20, heartbeat_timeout=5, welcome=dict)
    thread.join()
    assert "process 1 of 2 did not connect" in said[0]


def test_process_that_fails_before_all_connect_is_named_at_once() -> None:
    address, ended = f"127.0.0.1:{free_port()}", list[str]()

    def lead() -> None:
        try:
            connect_to_coordinator(
                address, 0, 3, host="a", token="t", join_timeout=600, heartbeat_timeout=60, welcome=dict
            )
        except EngineError as error:
            ended.append(str(error))

    thread = threading.Thread(target=lead, daemon=True)
    thread.start()
    lost = _connect(address, 1, 3, 60)
    lost.send(Message("hello", 1, {"count": 3, "host": "b", "pid": 7, "token": "t"}))
    lost.close()
    thread.join(60)
    assert ended == [
        "trainer.distributed: process 1 (b, pid 7) failed before all had connected: "
        "connection lost: the process or its host ended"
    ]


def test_failure_that_is_reported_before_the_welcome_counts() -> None:
    """A process may fail while the coordinator answers the others."""
    failures = list[str]()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def coordinate() -> None:
            channel = Channel(server.accept()[0])
            assert channel.receive() is not None
            channel.send(Message("failed", 0, {"process": 2, "reason": "its disk is full"}))
            peers = [{"host": host, "pid": 7} for host in "abc"]
            channel.send(Message("welcome", 0, {"peers": peers}))
            while channel.receive() is not None:
                pass
            channel.close()

        thread = threading.Thread(target=coordinate)
        thread.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        client, _ = connect_to_coordinator(
            address, 1, 3, host="b", token="t", join_timeout=60, heartbeat_timeout=60, welcome=dict
        )
        client.on_failure(failures.append)
        client.close()
        thread.join(60)
    assert failures == ["process 2 (c, pid 7) failed: its disk is full"]


def test_failure_before_jax_starts_is_not_waited_for_in_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    clients, events = meet(2), list[str]()
    clients[1].report_failure("its disk is full")
    clients[1].close()
    assert clients[0].wait_for_failure(60)
    monkeypatch.setattr(rendezvous, "connect_to_coordinator", lambda *_, **__: (clients[0], {"service": ""}))
    monkeypatch.setattr(jax.distributed, "initialize", lambda *_, **__: events.append("jax"))
    config = DistributedConfig("127.0.0.1:1", 2, 0)
    with pytest.raises(PeerLostError, match=r"process 1 \(host-1, pid \d+\) failed: its disk is full"):
        rendezvous.rendezvous(config, {}, "t", lambda processes: events.append(str(processes.count)))
    assert events == ["2"], "the failure of another process can end this one while jax waits"
    clients[0].close()


@pytest.mark.parametrize(("names", "spread"), [(["a", "a", "a"], False), (["a", "b", "b"], True)])
def test_shared_directory_is_detected(tmp_path: Path, names: tuple[str, ...], spread: bool) -> None:
    clients, found = meet(3), {}

    def look(process: int) -> None:
        directory = tmp_path / names[process]
        directory.mkdir(exist_ok=True)
        found[process] = find_shared_file_systems(clients[process], str(directory))

    threads = [threading.Thread(target=look, args=(process,)) for process in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[process].spread for process in range(3)] == [spread] * 3
    assert found[2].first == ((0, 1, 1) if spread else (0, 0, 0))
    assert found[2].hosts == (("host-0", "host-1", "host-1") if spread else ("host-0",) * 3)
    assert [list((tmp_path / name).iterdir()) for name in set(names)] == [[]] * len(set(names))
    for client in clients:
        client.close()


def test_process_rank_comes_from_flags_or_environment() -> None:
    said = {"JAX_COORDINATOR_ADDRESS": "h:1", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1"}
    found = DistributedConfig().with_environment(said)
    assert (found.coordinator_address, found.num_processes, found.process_id) == ("h:1", 2, 1)
    assert DistributedConfig("x:2", 3, 0).with_environment(said).coordinator_address == "x:2"
    with pytest.raises(ConfigError, match="num_processes is missing"):
        DistributedConfig().with_environment({"JAX_COORDINATOR_ADDRESS": "h:1", "JAX_PROCESS_ID": "1"})
    with pytest.raises(ConfigError, match="is not HOST:PORT"):
        DistributedConfig("nowhere", 2, 0)


def test_first_program_call_waits_for_all_processes() -> None:
    """Connection setup has a timeout; one process may compile or restore for longer than that."""
    clients, entered = meet(2), []
    late = threading.Event()

    def run(process: int) -> None:
        mine = Processes(process, 2, client=clients[process]).consensus("step", lambda number: entered.append(number))
        if process == 1:
            assert late.wait(30)
        mine(process)
        mine(process)

    threads = [threading.Thread(target=run, args=(process,)) for process in range(2)]
    for thread in threads:
        thread.start()
    threads[0].join(0.3)  # as long as it likes: it must not get anywhere
    assert entered == []
    late.set()
    for thread in threads:
        thread.join(30)
    assert sorted(entered) == [0, 0, 1, 1]
    for client in clients:
        client.close()


# ------------------------------------------------------------------------------------------------------------- attempts


def spliced(paths: records.RunPaths, attempts: int) -> list[dict[str, Any]]:
    """Return the run's curve: each step from the newest attempt that has it."""
    return list({row["global_step"]: row for n in range(1, attempts + 1) for row in rows(paths, n)}.values())


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory) -> tuple[records.RunPaths, list[tuple[int, str]]]:
    """One run of three attempts, and the exit codes of the first one's processes.

    Two processes on two devices each, one of which is killed; one process on four devices; two processes again, one of
    which is sent a stop signal.
    """
    root = tmp_path_factory.mktemp("moved")
    cache: dict[str, Any] = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path_factory.mktemp("cache"))}
    with Together([root, root], *FLAGS, **cache) as both:
        both.until(both.has_saved(1), 600)
        both.until(both.has_trained(1, 14), 600)
        both.processes[1].kill()
        ended = both.finish(600)
    with Engine(root, *FLAGS, devices=4, **cache) as one:
        one.until(lambda: True if len(rows(one.paths, 2)) > 5 else None, 600)
        one.process.send_signal(signal.SIGTERM)
        code, log = one.finish()
        assert code == 0, log
    profile = ["--trainer.profiler", "true", "--trainer.profiler_start_step", "1", "--trainer.profiler_num_steps", "2"]
    with Together([root, root], *FLAGS, *profile, "--trainer.tracker", TRACKERS.format(root / "tb"), **cache) as both:
        first = records.Lineage.read(one.paths.lineage).entries[-1].last_step
        assert first is not None
        both.until(both.has_trained(3, first + 6), 600)
        both.processes[1].send_signal(signal.SIGTERM)
        for code, log in both.finish():
            assert code == 0, log
    return both.paths[0], ended


@pytest.fixture(scope="module")
def alone(
    moved: tuple[records.RunPaths, list[tuple[int, str]]], tmp_path_factory: pytest.TempPathFactory
) -> records.RunPaths:
    """One uninterrupted process on four devices, up to the last step of the migrated run."""
    root, steps = tmp_path_factory.mktemp("alone"), len(spliced(moved[0], 3))
    with Engine(root, *FLAGS, devices=4) as engine:
        engine.until(lambda: True if len(rows(engine.paths, 1)) >= steps else None, 600)
        engine.process.send_signal(signal.SIGTERM)
        code, log = engine.finish()
    assert code == 0, log
    return engine.paths


@long
def test_run_on_two_one_and_two_processes_equals_one(
    alone: records.RunPaths, moved: tuple[records.RunPaths, list[tuple[int, str]]]
) -> None:
    paths, _ = moved
    ours, theirs = spliced(paths, 3), rows(alone, 1)
    assert [row["global_step"] for row in ours] == list(range(len(ours)))
    evaluated = 0
    for mine, reference in zip(ours, theirs, strict=False):
        assert mine["batch_digest"] == reference["batch_digest"]
        assert records.relative_difference(mine["train/loss"], reference["train/loss"]) <= 1e-5
        if "eval/loss" in reference:
            evaluated += 1
            assert records.relative_difference(mine["eval/loss"], reference["eval/loss"]) <= 1e-5
    assert evaluated == len(ours) // 5
    assert [entry.devices for entry in records.Lineage.read(paths.lineage).entries] == [4, 4, 4]


@long
def test_processes_stop_together_and_log_each_line_once(
    moved: tuple[records.RunPaths, list[tuple[int, str]]],
) -> None:
    paths, _ = moved
    first, ours = records.Lineage.read(paths.lineage).entries[-1].first_step, rows(paths, 3)
    assert [row["global_step"] for row in ours] == list(range(first, first + len(ours)))
    both, last = statuses(paths, 3), first + len(ours)
    assert [(one.state, one.step, one.process, one.processes) for one in both] == [
        ("stopped", last, process, 2) for process in range(2)
    ]
    assert {one.checkpoint for one in both} == {f"step-{last}-a003"}
    assert len({one.root_digest for one in both}) == 1
    assert "stopped at step" in Path(paths.attempt(3).log(1)).read_text()
    assert "coordinator_address: null" in Path(paths.config).read_text()


@long
def test_killed_process_is_named_and_loses_only_unsaved(
    moved: tuple[records.RunPaths, list[tuple[int, str]]],
) -> None:
    paths, ((code, log), (killed, _)) = moved
    assert (code, killed) == (1, -signal.SIGKILL), log
    assert re.search(
        r"process 1 \(host-[^)]*, pid \d+\) failed: ", records.Status.read(paths.attempt(1).status(0)).message
    )
    went_on = records.Lineage.read(paths.lineage).entries[1].first_step
    assert went_on % 10 == 0
    assert 10 <= went_on <= len(rows(paths, 1))


@long
def test_processes_read_own_rows_and_share_one_digest(
    moved: tuple[records.RunPaths, list[tuple[int, str]]],
) -> None:
    """The comparison with the run of one process checks the digests of the complete batch."""
    paths, _ = moved
    for process in range(2):
        assert "reads 4 of a batch's 8 examples" in Path(paths.attempt(3).log(process)).read_text()
    assert "examples" not in "".join(re.findall(r"reads .*", Path(paths.attempt(2).log(0)).read_text()))


@long
def test_trackers_and_profiler_run_in_first_process_only(
    moved: tuple[records.RunPaths, list[tuple[int, str]]],
) -> None:
    paths, _ = moved
    attempt = Path(paths.attempt(3).dir)
    (offline,) = (attempt / "wandb").glob("offline-run-*/*.wandb")
    held(offline, b"train/loss", b"eval/loss")
    (events,) = Path(paths.root, "tb").rglob("events.out.tfevents.*")
    assert b"eval/loss" in events.read_bytes()
    (trace,) = (attempt / "profiler" / "plugins" / "profile").iterdir()
    assert list(trace.glob("*.xplane.pb"))


@long
def test_checkpoint_of_two_processes_equals_that_of_one(
    alone: records.RunPaths, moved: tuple[records.RunPaths, list[tuple[int, str]]]
) -> None:
    """The states differ in last bits: sums over processes have another order than over devices."""
    paths, _ = moved
    theirs, ours = (read_manifest(one.checkpoint("step-10-a001")) for one in (alone, paths))
    assert [(one.name, one.shape, one.grid) for one in ours.array_entries] == [
        (one.name, one.shape, one.grid) for one in theirs.array_entries
    ]
    assert ours.hosts == []
    report = verify_checkpoint(paths.checkpoint("step-10-a001"), deep=True)
    assert (report.flaws, report.unlisted) == ([], [])


LATE = """
import sys, time
from midstream_engine.trainer.computation import programs
from midstream_engine import train
compile_steps = programs.compile_steps
programs.compile_steps = lambda *arguments: (time.sleep(35), compile_steps(*arguments))[1]
sys.exit(train.main())
"""


@long
@pytest.mark.slow
def test_slow_process_is_waited_for(tmp_path: Path) -> None:
    """A host that starts slowly, or compiles what another one found in its cache."""
    flags = ["--trainer.num_train_steps", "2"]
    with Together([tmp_path, tmp_path], *flags, programs=[["-m", "midstream_engine.train"], ["-c", LATE]]) as both:
        for code, log in both.finish(480):
            assert code == 0, log
    assert [row["global_step"] for row in rows(both.paths[0], 1)] == [0, 1]


@long
def test_nan_loss_ends_all_processes_with_one_message(tmp_path: Path) -> None:
    with Together([tmp_path, tmp_path], *FLAGS, "--optimizer.learning_rate", "1e30", "--optimizer.warmup", "0") as both:
        ended = both.finish(600)
    said = [re.search(r"the loss of step \d+ is (NaN|infinite)", log) for _, log in ended]
    assert [code for code, _ in ended] == [1, 1], ended
    assert said[0] is not None
    assert said[1] is not None
    assert said[0][0] == said[1][0]
    assert all(said[0][0] in one.message for one in statuses(both.paths[0], 1))
