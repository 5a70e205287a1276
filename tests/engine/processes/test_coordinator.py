"""The processes of an attempt meet, exchange messages, and report failures."""

from __future__ import annotations

import re
import socket
import threading
from pathlib import Path

import jax
import pytest

from midstream_core.attempt.errors import EngineError
from midstream_engine.config.distributed import DistributedConfig
from midstream_engine.config.errors import ConfigError
from midstream_engine.processes import coordinator, coordinator_client, rendezvous
from midstream_engine.processes.coordinator import Coordinator
from midstream_engine.processes.coordinator_client import (
    CoordinatorClient,
    PeerLostError,
    _connect,
    connect_to_coordinator,
)
from midstream_engine.processes.frames import Channel, Message
from midstream_engine.processes.rendezvous import Processes
from midstream_engine.processes.shared_file_systems import find_shared_file_systems
from support.loopback import free_port
from support.module_time import replace_time


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


def test_process_that_fails_before_all_connect_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "SIGNAL_TIMEOUT", 0.0)
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


def connect_in_thread(address: str, process: int, count: int, said: dict[int, str]) -> threading.Thread:
    """Connect a process that is refused; ``said`` gets its error."""

    def join() -> None:
        with pytest.raises(EngineError) as raised:
            connect_to_coordinator(
                address, process, count, host="a", token="t", join_timeout=60, heartbeat_timeout=60, welcome=dict
            )
        said[process] = str(raised.value)

    thread = threading.Thread(target=join, daemon=True)
    thread.start()
    return thread


def lose_process(address: str, process: int, count: int) -> None:
    """Connect a process that ends before it gets an answer."""
    lost = _connect(address, process, count, 60)
    lost.send(Message("hello", process, {"count": count, "host": "b", "pid": 7, "token": "t"}))
    lost.close()


def test_all_that_connect_get_the_name_of_the_failed_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Process 0 closes the coordinator as soon as it is refused."""
    address, said = f"127.0.0.1:{free_port()}", dict[int, str]()
    led, both = threading.Event(), threading.Event()
    monkeypatch.setattr(coordinator, "SIGNAL_TIMEOUT", 0.0)
    monkeypatch.setattr(coordinator_client, "SIGNAL_TIMEOUT", 0.0)
    admit, send = Coordinator._admit, Coordinator._send

    def admit_in_order(self: Coordinator, channel: Channel) -> int | None:
        process = admit(self, channel)
        if process is not None:
            (led if process == 0 else both).set()
        return process

    def send_slowly(self: Coordinator, channel: Channel, message: Message) -> bool:
        sent = send(self, channel, message)
        if message.kind == "rejected" and channel is self._channels[0]:
            assert self._closed.wait(60)
        return sent

    monkeypatch.setattr(Coordinator, "_admit", admit_in_order)
    monkeypatch.setattr(Coordinator, "_send", send_slowly)
    threads = [connect_in_thread(address, 0, 4, said)]
    assert led.wait(60)
    threads.append(connect_in_thread(address, 1, 4, said))
    assert both.wait(60)
    lose_process(address, 2, 4)
    for thread in threads:
        thread.join(60)
    failed = "trainer.distributed: process 2 (b, pid 7) failed before all had connected: connection lost"
    assert said.keys() == {0, 1}
    assert all(line.startswith(failed) for line in said.values()), said


class Clock(threading.Event):
    """Event that says when it is waited for, and then is waited for until ``passed``."""

    def __init__(self) -> None:
        super().__init__()
        self.waited, self.passed = threading.Event(), threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        self.waited.set()
        assert self.passed.wait(60)
        return self.is_set()


def test_stop_of_one_process_is_no_failure_of_those_that_connect() -> None:
    """All processes are stopped, and their hosts get the signal one after another."""
    address = f"127.0.0.1:{free_port()}"
    meeting = Coordinator(address, 3, "t", 60)
    meeting._closed = clock = Clock()
    gather = threading.Thread(target=meeting.gather, args=(600, dict), daemon=True)
    gather.start()
    first = _connect(address, 0, 3, 60)
    first.send(Message("hello", 0, {"count": 3, "host": "a", "pid": 6, "token": "t"}))
    lose_process(address, 1, 3)
    answer = first.receive()
    assert answer is not None
    assert answer.kind == "failed"
    assert clock.waited.wait(60), "process 0 is refused at once"
    assert not meeting._refusal
    clock.passed.set()
    answer = first.receive()
    assert answer is not None
    assert (answer.kind, answer.fields["reason"]) == ("rejected", meeting._refusal)
    gather.join(60)
    first.close()
    meeting.close()


def test_stop_of_process_0_is_no_failure_of_those_that_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    waited = list[float]()
    replace_time(monkeypatch, coordinator_client, sleep=waited.append)
    with socket.create_server(("127.0.0.1", 0)) as server:
        said = dict[int, str]()
        thread = connect_in_thread(f"127.0.0.1:{server.getsockname()[1]}", 1, 2, said)
        channel = Channel(server.accept()[0])
        assert channel.receive() is not None
        channel.close()
        thread.join(60)
    assert coordinator_client.SIGNAL_TIMEOUT in waited
    assert "ended before all processes had connected" in said[1]


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
