"""Calls of `midstream_host` functions on a host where nothing is installed.

The host's Python runs a short bootstrap, which reads one line of JSON with the sources of the modules that the function
needs, creates the modules and runs the function. A *call* answers with one JSON line; a *program* owns stdin and stdout
until it exits.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import re
import threading
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, ParamSpec, Protocol, TypeVar, runtime_checkable

from midstream.errors import ConnectionLostError, HostError, RemoteError
from midstream.hosts.deadline import Deadline
from midstream.hosts.host import CALL_TIMEOUT, Completed, Host, Process
from midstream.hosts.reconnect import CALL, Reconnect
from midstream.hosts.rpc.answer_limits import (
    FORCED,
    PREAMBLE_LIMIT,
    STDERR_LIMIT,
    decode,
    run_to_end,
    too_large,
)
from midstream.hosts.rpc.bootstrap import BOOTSTRAP, isolation
from midstream.hosts.rpc.result_checks import PACKAGE, name_of, result_of
from midstream_core.json_types import JsonObject
from midstream_host.declarations import Declaration, declaration_of

P = ParamSpec("P")
R = TypeVar("R")
Remote = Callable[..., Any]  # a declared function of `midstream_host`
Job = Callable[[frozenset[str]], bytes]  # names of modules that an interpreter has -> the line that it reads

RECORDS = "midstream_core.records"  # a package: its modules are sent before it
BEGIN = b"\0midstream\n"  # what a program's stdout begins with
START_TIMEOUT = 60.0  # seconds until a program has begun
EXIT_TIMEOUT = 10.0  # seconds from the end of a program's stdout to its exit


@runtime_checkable
class ImportingHost(Protocol):
    """A host with interpreters that may have modules before they read a job."""

    def run_job(self, argv: Sequence[str], job: Job, *, timeout: float | None, limit: int, what: str) -> Completed:
        """Run an interpreter to its end, as `Host.run` does; ``job`` returns its stdin.

        ``job`` is called with the modules that this interpreter has.
        """
        ...


@runtime_checkable
class ImportingProcess(Protocol):
    """An interpreter on such a host.

    ``imported``: the names of the modules that it has.
    """

    imported: frozenset[str]


def _declaration(function: Remote) -> Declaration:
    declaration = declaration_of(function)
    if declaration is None or not function.__module__.startswith(PACKAGE):
        raise ValueError(f"{function!r} is not a declared function of midstream_host")
    return declaration


_READING = threading.Lock()  # the hosts of a fleet ask for the same modules at once: they are read once


def _modules(module: str) -> tuple[tuple[str, str | None], ...]:
    """Return name and source of every module that ``module`` needs, in import order.

    A package is sent without source, before its modules; the records follow them with the source of ``__init__.py``.
    """
    with _READING:
        return _read_modules(module)


@functools.cache
def _read_modules(module: str) -> tuple[tuple[str, str | None], ...]:
    sources: list[tuple[str, str | None]] = []
    packages: set[str] = set()
    modules: set[str] = set()

    def add(name: str) -> None:
        if name in modules:
            return
        modules.add(name)
        package = name if name == RECORDS else name.rpartition(".")[0]
        for parent in _with_parents(package):
            if parent not in packages:
                packages.add(parent)
                sources.append((parent, None))
        text = _source(name).read_text()
        for needed in _imports(text):
            add(needed)
        sources.append((name, text))

    add(module)
    return tuple(sources)


def _with_parents(package: str) -> list[str]:
    """Return the packages around ``package``, the outermost first, and itself."""
    parts = package.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]


# Parsing the sources takes ten times as long; a test compares the two.
_IMPORT = re.compile(r"^[ \t]*from (midstream_(?:core|host)[\w.]*) import (?:\(([^)]*)\)|(.*))$", re.MULTILINE)


def _imports(text: str) -> list[str]:
    """Return the modules of host and core that a source imports."""
    imports: list[str] = []
    for module, several, single in _IMPORT.findall(text):
        for alias in re.sub("#.*", "", several or single).split(","):
            if alias.strip():
                below = f"{module}.{alias.split()[0]}"
                imports.append(below if _source(below).is_file() else module)
    return imports


def _source(name: str) -> Path:
    """Return the file of a module, or of the records' ``__init__``.

    The module's file need not exist.
    """
    top, *folders = f"{name}.__init__".split(".") if name == RECORDS else name.split(".")
    return Path(str(import_module(top).__file__)).parent.joinpath(*folders[:-1], f"{folders[-1]}.py")


def module_names(module: str) -> frozenset[str]:
    """Return the names of all modules that ``module`` needs, and its own."""
    return frozenset(name for name, _ in _modules(module))


def job_line(
    function: Remote,
    arguments: JsonObject | None,
    *,
    program: bool,
    imported: frozenset[str] = frozenset(),
) -> bytes:
    """Return the line that the bootstrap reads.

    The modules that the interpreter has ``imported`` are left out. Without ``arguments``, their line follows later.
    """
    modules = _modules(function.__module__)
    job = {
        "modules": [module for module in modules if module[0] not in imported] if imported else modules,
        "module": function.__module__,
        "function": function.__name__,
        "arguments": None if arguments is None else dict(arguments),
        "program": program,
    }
    return json.dumps(job).encode() + b"\n"


def caller(
    host: Host,
    function: Callable[P, R],
    timeout: float | None = CALL_TIMEOUT,
    python: str = "",
    waiting: Process | None = None,
) -> Callable[P, R]:
    """Return ``function`` so that it runs on ``host``: see `Host.call`.

    The interpreter is the host's or ``python``. A function that may be repeated runs in ``waiting``, of
    `open_waiting_call`, unless that has ended.
    """
    declaration, signature, name = _declaration(function), _signature(function), name_of(function)

    def call(*positional: P.args, **named: P.kwargs) -> R:
        arguments = signature.bind(*positional, **named).arguments
        interpreter = python or host.remote_python
        if not interpreter:
            raise no_python(host)
        argv = _argv(interpreter, name)
        if waiting is not None:
            given, answer = json.dumps(dict(arguments)).encode() + b"\n", None
            with contextlib.closing(waiting), contextlib.suppress(HostError, OSError, EOFError):
                done = run_to_end(waiting, name, given, timeout, declaration.answer_limit)
                answer = _answer(host, argv[0], name, done)
            if answer is not None:
                return result_of(host.name, function, arguments, answer)
            # The waiting process has ended, or did not answer: the function may have run, and is repeated.
        job = functools.partial(_line_for, function, arguments, False)
        reconnect = Reconnect(CALL)
        while True:
            try:
                answer = _call_once(host, argv, name, job, timeout, declaration.answer_limit)
                return result_of(host.name, function, arguments, answer)
            except CALL.lost:
                if not declaration.repeatable or reconnect.exhausted():
                    raise
                time.sleep(reconnect.delay())
                with contextlib.suppress(HostError):  # the next try reports what is wrong
                    host.connect()

    return call


_signature = functools.lru_cache(maxsize=None)(inspect.signature)


def _argv(python: str, function: str) -> list[str]:
    return [python, *isolation(function), "-c", BOOTSTRAP]


def _line_for(function: Remote, arguments: JsonObject, program: bool, imported: frozenset[str]) -> bytes:
    return job_line(function, arguments, program=program, imported=imported)


def _call_once(host: Host, argv: Sequence[str], function: str, job: Job, timeout: float | None, limit: int) -> object:
    if isinstance(host, ImportingHost):
        done = host.run_job(argv, job, timeout=timeout, limit=limit, what=function)
    else:
        done = host.run(argv, stdin=job(frozenset()), timeout=timeout, limit=limit, what=function)
    return _answer(host, argv[0], function, done)


def _answer(host: Host, python: str, function: str, done: Completed) -> object:
    """Return the answer in a call's output.

    Raises HostError without one, ConnectionLostError where a signal ended the interpreter.
    """
    answer_line = done.stdout.rstrip(b"\n").rpartition(b"\n")[2]  # the interpreter may have printed before it
    try:
        answer = decode(answer_line)
    except ValueError as error:
        if answer_line and not done.returncode:
            raise HostError(
                f"{host.name}: {function} gave a malformed answer: {error}",
                f"check which program answers on {host.name}",
            ) from None
        if done.returncode < 0:
            raise _killed(host, function, done.returncode, "answered") from None
        raise _no_answer(host, python, function, done.returncode, done.stderr.decode(errors="replace")) from None
    return answer


def open_waiting_call(host: Host, function: Remote) -> Process:
    """Start an interpreter with the modules of ``function``, for `caller`.

    The interpreter ends without its arguments when its stdin does. Raises as `Host.open`, and HostError where the host
    has no Python; OSError where it has ended already.
    """
    process = open_interpreter(host, function)
    try:
        process.stdin.write(job_line(function, None, program=False))
        process.stdin.flush()
    except BaseException:
        process.close()
        raise
    return process


def open_interpreter(host: Host, function: Remote) -> Process:
    """Start an interpreter that waits for its program, which `start_program` sends.

    The program is ``function``, or another one with the same isolation. Raises as `Host.open`, and HostError where the
    host has no Python.
    """
    if not host.remote_python:
        raise no_python(host)
    return host.open(_argv(host.remote_python, name_of(function)))


def start_program(
    host: Host, function: Callable[P, object], *, window: int | None = None, waiting: Process | None = None
) -> Callable[P, Process]:
    """Return ``function``, a program of `midstream_host`, to start on ``host``.

    stdin and stdout of the process then carry its own bytes. ``window``: bytes of unread output after which it blocks.
    ``waiting``: an interpreter of `open_interpreter`; a new one is started only where it has ended.
    """
    _declaration(function)
    signature = _signature(function)

    def start(*positional: P.args, **named: P.kwargs) -> Process:
        arguments = signature.bind(*positional, **named).arguments
        if not host.remote_python:
            raise no_python(host)
        name = name_of(function)
        argv = _argv(host.remote_python, name)
        job = functools.partial(_line_for, function, arguments, True)
        if waiting is not None:
            with contextlib.suppress(HostError):  # it has ended while it waited
                return _begun(host, waiting, argv[0], name, job)
        process = host.open(argv) if window is None else host.open(argv, window=window)
        return _begun(host, process, argv[0], name, job)

    return start


def _begun(host: Host, process: Process, python: str, name: str, job: Job) -> Process:
    """Send the job to an interpreter, and wait until its program has begun."""
    try:
        line = job(process.imported if isinstance(process, ImportingProcess) else frozenset())
    except BaseException:
        process.close()
        raise
    try:
        with contextlib.suppress(BrokenPipeError):  # it has exited already; its stderr shows why
            process.stdin.write(line)
            process.stdin.flush()
        # A login shell may print first, and its last line may have no end. The program's own bytes come after the mark.
        process.limit_reading(Deadline(START_TIMEOUT), STDERR_LIMIT)
        printed = 0
        while line := process.stdout.readline(PREAMBLE_LIMIT):
            if line.endswith(BEGIN):
                process.limit_reading(None)
                return process
            printed += len(line)
            if printed >= PREAMBLE_LIMIT:
                raise too_large(host.name, f"{name}, before it began,", PREAMBLE_LIMIT, FORCED)
        code = process.wait(EXIT_TIMEOUT)
        if code < 0:
            raise _killed(host, name, code, "began")
        raise _no_answer(host, python, name, code, process.stderr_text())
    except (OSError, EOFError) as error:  # a timeout is one, too
        process.close()
        raise ConnectionLostError(f"{host.name}: lost contact as {name} was started", "run the same again") from error
    except BaseException:
        process.close()
        raise


def no_python(host: Host) -> HostError:
    """Return the error for a host without Python: it can only be watched."""
    return HostError(f"{host.name}: no Python 3.8 or newer there", "install python3, or name one with `python:`")


def _killed(host: Host, function: str, code: int, before: str) -> ConnectionLostError:
    """Return the error for an interpreter that a signal ended."""
    return ConnectionLostError(
        f"{host.name}: {function} was ended by signal {-code} before it {before}",
        "was it short of memory? run the same again",
    )


def _no_answer(host: Host, python: str, function: str, code: int, stderr: str) -> RemoteError:
    words = stderr.strip().splitlines()
    return RemoteError(
        f"{host.name}: {function} gave no answer (exit {code}): {words[-1].strip() if words else 'no message'}",
        "Bootstrap",
        f"{python} has to be Python 3.8 or newer there; `python:` in the fleet file names another",
    )
