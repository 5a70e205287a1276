"""Links between the operator's machines and hosts, and what goes wrong on them."""

from __future__ import annotations

import importlib
import json
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, cast

from midstream.errors import ConnectionLostError, HostError
from midstream.hosts.deadline import Deadline
from midstream.hosts.host import ANSWER_LIMIT, Completed, P, Process, R
from midstream.hosts.rpc import remote_call
from midstream.hosts.rpc.remote_call import Job
from midstream_host.machine import probe
from simulation.machines import Machine, Pipe, SimulatedProcess, present
from simulation.scheduler import SCHEDULER

LATENCY = 0.005  # seconds, one way
CONNECT_TIMEOUT = 10.0  # seconds until an unreachable host is given up
BEGIN = b"\0midstream\n"
ALL: frozenset[str] = frozenset()  # set by `install`: names of all modules, which no job has to carry


@dataclass
class Call:
    """One call of a function or program on a host, as it is about to be made."""

    number: int
    host: str
    function: str
    process: SimulatedProcess | None  # the caller


@dataclass
class Network:
    """All links, the calls so far, and what decides on faults.

    ``fault`` gets each call and returns what happens to it: empty, ``request lost``, ``answer lost`` or ``stall``.
    """

    machines: dict[str, Machine]
    cut: set[str] = field(default_factory=set)  # hosts that cannot be reached
    calls: list[Call] = field(default_factory=list)
    fault: Callable[[Call], str] = lambda call: ""
    after: Callable[[Call], None] = lambda call: None

    def reachable(self, name: str) -> bool:
        return name not in self.cut and self.machines[name].up

    def begin(self, host: str, function: str) -> tuple[Call, str]:
        """Record a call, and draw what happens to it."""
        call = Call(len(self.calls), host, function, present())
        self.calls.append(call)
        return call, self.fault(call)


class SimulatedHost:
    """The Host of a simulated machine. Real remote calls run in processes of that machine."""

    def __init__(self, name: str, config: Any, network: Network) -> None:
        self.name, self.config, self._network = name, config, network
        self.root = config.root
        self.remote_python = ""
        self._connected = False
        self._boots = 0

    @property
    def _machine(self) -> Machine:
        return self._network.machines[self.name]

    def connect(self) -> None:
        if self._connected and self._boots == self._machine.boots and self._network.reachable(self.name):
            return
        SCHEDULER.park(2 * LATENCY)
        if not self._network.reachable(self.name):
            self._connected = False
            SCHEDULER.park(CONNECT_TIMEOUT)
            raise HostError(f"{self.name}: no connection within {CONNECT_TIMEOUT:.0f} s", "is the host up?")
        self._connected, self._boots = True, self._machine.boots
        self.remote_python = "/usr/bin/python3"

    def with_new_connection(self) -> SimulatedHost:
        other = SimulatedHost(self.name, self.config, self._network)
        other.connect()
        return other

    def shell_line(self, command: str) -> str:
        return command

    def close(self) -> None:
        self._connected = False

    def lost(self) -> ConnectionLostError:
        """Mark the connection as broken, and return the error for it."""
        self._connected = False
        return ConnectionLostError(f"{self.name}: the connection is lost", "is the host up, and the link to it?")

    def call(self, function: Callable[P, R], /, *, timeout: float | None = 60.0) -> Callable[P, R]:
        return remote_call.caller(self, function, timeout)

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        timeout: float | None = 60.0,
        limit: int = ANSWER_LIMIT,
        what: str = "",
    ) -> Completed:
        del stdin, env, timeout, limit, what
        raise AssertionError(f"no command of a shell is simulated: {argv}")

    def run_job(self, argv: Sequence[str], job: Job, *, timeout: float | None, limit: int, what: str) -> Completed:
        """Run a function on the machine, with the faults that the network draws."""
        del argv, limit
        self.connect()
        call, fault = self._network.begin(self.name, what)
        SCHEDULER.park(LATENCY)
        if fault == "request lost" or not self._network.reachable(self.name):
            SCHEDULER.park(timeout or 60.0)
            raise self.lost()
        boots = self._machine.boots
        written = bytearray()
        line = json.loads(job(ALL))
        process = SimulatedProcess(self._machine, lambda: _answer(line, written), what)
        ended = process.ended.wait(timeout)
        SCHEDULER.park(LATENCY)
        unreachable = self._machine.boots != boots or not self._network.reachable(self.name)
        self._network.after(call)
        if fault in ("answer lost", "stall") or unreachable or not ended:
            SCHEDULER.park(0.0 if fault == "answer lost" else timeout or 60.0)
            raise self.lost()
        return Completed(process.exit_code or 0, bytes(written), bytes(process.errors))

    def open(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, window: int | None = None) -> Process:
        del env, window
        self.connect()
        _, fault = self._network.begin(self.name, "program")
        SCHEDULER.park(LATENCY)
        if fault or not self._network.reachable(self.name):
            SCHEDULER.park(CONNECT_TIMEOUT)
            raise self.lost()
        return SimulatedProgram(self, self._machine, self._network)


def _arguments(line: Mapping[str, Any]) -> tuple[Callable[..., Any], dict[str, Any]]:
    return getattr(importlib.import_module(line["module"]), line["function"]), line["arguments"]


def _answer(line: Mapping[str, Any], written: bytearray) -> int:
    """Run a function and write its answer, as the bootstrap does."""
    function, arguments = _arguments(line)
    try:
        answer: dict[str, Any] = {"value": function(**arguments)}
    except Exception as error:  # noqa: BLE001  the answer has it
        answer = {"error": str(error) or repr(error), "kind": type(error).__name__}
    written += json.dumps(answer, default=_plain).encode() + b"\n"
    return 0


def _plain(value: Any) -> Any:
    return value.to_json() if hasattr(value, "to_json") else vars(value)


class SimulatedProgram:
    """A program on a machine, with pipes over the link."""

    def __init__(self, host: SimulatedHost, machine: Machine, network: Network) -> None:
        self.host, self._simulated, self._machine, self._network = host.name, host, machine, network
        self.imported = ALL
        self.stdin = cast(BinaryIO, _Writer(self))
        self.stdout = cast(BinaryIO, _Reader(self))
        self.output, self.input = Pipe(), Pipe()
        self.process: SimulatedProcess | None = None
        self.deadline: Deadline | None = None
        self._boots = machine.boots
        self._closed = False

    @property
    def connected(self) -> bool:
        return self._network.reachable(self.host) and self._boots == self._machine.boots and not self._closed

    def begin(self, line: bytes) -> None:
        """Start the program of a job."""
        job = json.loads(line)
        process = SimulatedProcess(self._machine, lambda: self._run(job), job["function"], output=self.output.write)
        process.stdin = self.input
        process.looks = job["function"] == "main" and job["module"] == probe.__name__
        self.process = process

        def watch() -> None:
            process.ended.wait()
            self.output.close()

        SCHEDULER.start(watch, None, f"end of {job['function']}")

    def _run(self, job: Mapping[str, Any]) -> object:
        function, arguments = _arguments(job)
        self.output.write(BEGIN)
        try:
            return function(**arguments)
        except Exception:  # noqa: BLE001  its stderr has it
            present().stderr.write(traceback.format_exc())  # type: ignore[union-attr]
            return 1

    def limit_reading(self, deadline: Deadline | None, stderr: int = 0) -> None:
        del stderr
        self.deadline = deadline

    def wait(self, timeout: float | None = None) -> int:
        process = self.process
        if process is None:
            return 1
        if not process.ended.wait(timeout):
            raise TimeoutError(f"{process.name} still runs")
        return process.exit_code or 0

    def stderr_text(self) -> str:
        return "" if self.process is None else self.process.errors.decode(errors="replace")

    def shell_line(self, command: str) -> str:
        return command

    def close(self) -> None:
        self._closed = True
        self.input.close()
        if self.process is not None and self.process.exit_code is None and self.process.machine.up:
            self.process.kill()
        self.output.close()


class _Writer:
    """``stdin`` of a program, at the operator's end."""

    def __init__(self, program: SimulatedProgram) -> None:
        self._program = program

    def write(self, data: bytes) -> int:
        if not self._program.connected:
            raise BrokenPipeError(32, "Broken pipe")
        if self._program.process is None:
            self._program.begin(data)
        else:
            self._program.input.write(data)
        return len(data)

    def flush(self) -> None:
        """Nothing is held back."""

    def shell_line(self, command: str) -> str:
        return command

    def close(self) -> None:
        self._program.input.close()


class _Reader:
    """``stdout`` of a program, at the operator's end."""

    POLL = 3.0  # seconds between two looks at a link that was cut

    def __init__(self, program: SimulatedProgram) -> None:
        self._program = program

    def _wait(self, enough: Callable[[bytearray], bool]) -> None:
        program = self._program
        pipe = program.output
        while not enough(pipe.data) and not pipe.closed:
            deadline = program.deadline
            step = self.POLL if deadline is None else min(self.POLL, deadline.step)
            pipe.changed.clear()
            pipe.changed.wait(step)
            if not program.connected:
                raise ConnectionLostError(f"{program.host}: the connection is lost", "is the host up?")
            if deadline is not None and deadline.count():
                raise TimeoutError("no answer in time")

    def peek(self, size: int) -> bytes:
        self._wait(bool)
        return bytes(self._program.output.data[:size])

    def readline(self, limit: int = -1) -> bytes:
        self._wait(lambda data: b"\n" in data or (limit >= 0 and len(data) >= limit))
        data = self._program.output.data
        end = data.find(b"\n") + 1 or len(data)
        return self._program.output.take(end if limit < 0 else min(end, limit))

    def read(self, size: int = -1) -> bytes:
        self._wait((lambda data: False) if size < 0 else lambda data: len(data) >= size)
        return self._program.output.take(len(self._program.output.data) if size < 0 else size)

    def read1(self, size: int = -1) -> bytes:
        self._wait(bool)
        return self._program.output.take(len(self._program.output.data) if size < 0 else size)
