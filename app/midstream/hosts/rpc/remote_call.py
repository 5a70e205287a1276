"""Calls of `midstream.remote` functions on a host where nothing is installed.

The host's Python runs a short bootstrap. It reads one line of JSON with the sources of the modules that the function
needs, creates the modules and runs the function. A *call* answers with one JSON line; a *program* owns stdin and stdout
until it exits.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import json
import threading
import time
from collections.abc import Callable, Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any, ParamSpec, TypeVar

from midstream.errors import ConnectionLostError, HostError, RemoteError
from midstream.hosts.deadline import Deadline
from midstream.hosts.host import Host, Process
from midstream.hosts.rpc.answer_limits import FORCED, PREAMBLE_LIMIT, STDERR_LIMIT, decode, too_large
from midstream.hosts.rpc.result_checks import PACKAGE, name_of, result_of
from midstream.remote.declarations import Declaration, declaration_of

P = ParamSpec("P")
R = TypeVar("R")
Remote = Callable[..., Any]  # a declared function of `midstream.remote`

RECORDS = "midstream_engine.records"  # a package: its modules are sent before it
BEGIN = b"\0midstream\n"  # what a program's stdout begins with
START_TIMEOUT = 60.0  # seconds until a program has begun
EXIT_TIMEOUT = 10.0  # seconds from the end of a program's stdout to its exit
TRIES = 3  # of a function that may be repeated, if the connection is lost during a call
RETRY_INTERVAL = 1.0  # seconds

# No module is ever imported from the directory that an interpreter happens to start in: -I leaves it out, and with it
# PYTHON* and the user's packages. What needs a client of a bucket needs those, and has the first line of the bootstrap
# instead, before which `sys` alone, a part of the interpreter, is imported (-P exists from Python 3.11 on).
CLIENTS = "bucket."
# stdout belongs to the answer: what a module prints by mistake goes to stderr. So do empty lines, every two seconds: a
# server may close a channel on which nothing moves (ChannelTimeout).
# The clients of buckets make many objects that stay: the collector would walk through them again and again, and for
# 0.2 s as the interpreter exits.
BOOTSTRAP = """\
import sys; sys.path[:] = [place for place in sys.path if place]
import gc, json, types, os, time, _thread
gc.set_threshold(20000, 20, 20)
def beat():
    try:
        while True:
            time.sleep(2.0); os.write(2, b"\\n")
    except OSError: return
_thread.start_new_thread(beat, ())
out = os.fdopen(os.dup(1), "wb"); os.dup2(2, 1)
job = json.loads(sys.stdin.buffer.readline())
for name, text in job["modules"]:
    module = sys.modules.setdefault(name, types.ModuleType(name))
    if text is None: module.__path__ = []
    else: exec(compile(text, "<" + name + ">", "exec"), module.__dict__)
    head, _, tail = name.rpartition(".")
    if head: setattr(sys.modules[head], tail, module)
function = getattr(sys.modules[job["module"]], job["function"])
if job["program"]:
    sys.stdout = types.SimpleNamespace(buffer=out, write=lambda text: out.write(text.encode()), flush=out.flush)
    out.write(b"\\0midstream\\n"); out.flush()
    code = function(**job["arguments"]); out.flush(); gc.freeze()
    sys.exit(code if isinstance(code, int) else 0)
else:
    try: answer = {"value": function(**job["arguments"])}
    except Exception as error: answer = {"error": str(error) or repr(error), "kind": type(error).__name__}
    plain = lambda value: value.to_json() if hasattr(value, "to_json") else vars(value)
    out.write(b"\\n" + json.dumps(answer, default=plain).encode() + b"\\n"); out.flush(); gc.freeze()
"""


def isolation(function: str) -> list[str]:
    """Return the interpreter's flags for ``midstream.remote.<function>``."""
    return [] if function.startswith(CLIENTS) else ["-I"]


def _declaration(function: Remote) -> Declaration:
    found = declaration_of(function)
    if found is None or not function.__module__.startswith(PACKAGE):
        raise ValueError(f"{function!r} is not a declared function of midstream.remote")
    return found


@functools.cache
def _modules(module: str) -> tuple[tuple[str, str | None], ...]:
    """Return name and source of every module that ``module`` needs, in import order.

    A package is sent without source, before its modules; the records follow them with the source of ``__init__.py``.
    """
    found: list[tuple[str, str | None]] = []
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
                found.append((parent, None))
        text = _source(name).read_text()
        for needed in _imports(text):
            add(needed)
        found.append((name, text))

    add(module)
    return tuple(found)


def _with_parents(package: str) -> list[str]:
    """Return the packages around ``package``, the outermost first, and itself."""
    parts = package.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]


_PARSING = threading.Lock()  # CPython 3.11's parser counts its recursion depth once for all threads


def _imports(text: str) -> list[str]:
    """Return the `midstream.remote` and `midstream_engine` modules a source imports."""
    with _PARSING:
        nodes = list(ast.walk(ast.parse(text)))
    names: list[str] = []
    for node in nodes:
        if not isinstance(node, ast.ImportFrom) or node.module is None:
            continue
        if node.module.startswith((PACKAGE, "midstream_engine")):
            for alias in node.names:
                below = f"{node.module}.{alias.name}"
                names.append(below if _source(below).is_file() else node.module)
    return names


def _source(name: str) -> Traversable:
    """Return the file of a module, or of the records' ``__init__``.

    The module's file need not exist.
    """
    top, *folders = f"{name}.__init__".split(".") if name == RECORDS else name.split(".")
    return resources.files(top).joinpath(*folders[:-1], f"{folders[-1]}.py")


def job_line(function: Remote, arguments: Mapping[str, Any], *, program: bool) -> bytes:
    """Return the line that the bootstrap reads."""
    job = {
        "modules": _modules(function.__module__),
        "module": function.__module__,
        "function": function.__name__,
        "arguments": dict(arguments),
        "program": program,
    }
    return json.dumps(job).encode() + b"\n"


def caller(host: Host, function: Callable[P, R], timeout: float | None = 60.0, python: str = "") -> Callable[P, R]:
    """Return ``function`` so that it runs on ``host``: see `Host.call`.

    It runs in the host's interpreter or ``python``.
    """
    declaration, signature, name = _declaration(function), inspect.signature(function), name_of(function)

    def call(*positional: P.args, **named: P.kwargs) -> R:
        arguments = signature.bind(*positional, **named).arguments
        interpreter = python or host.remote_python
        if not interpreter:
            raise no_python(host)
        line = job_line(function, arguments, program=False)
        for tries_left in reversed(range(TRIES if declaration.repeatable else 1)):
            try:
                answer = _call_once(host, interpreter, name, line, timeout, declaration.answer_limit)
                return result_of(host.name, function, arguments, answer)
            except ConnectionLostError:
                if not tries_left:
                    raise
                time.sleep(RETRY_INTERVAL)
                with contextlib.suppress(HostError):  # the next try reports what is wrong
                    host.connect()
        raise AssertionError("no try was left")

    return call


def _call_once(host: Host, python: str, function: str, line: bytes, timeout: float | None, limit: int) -> Any:
    argv = [python, *isolation(function), "-c", BOOTSTRAP]
    done = host.run(argv, stdin=line, timeout=timeout, limit=limit, what=function)
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
            raise ConnectionLostError(
                f"{host.name}: {function} was ended by signal {-done.returncode} before it answered",
                "was it short of memory? run the same again",
            ) from None
        raise _no_answer(host, python, function, done.returncode, done.stderr.decode(errors="replace")) from None
    return answer


def start_program(host: Host, function: Callable[P, Any], *, window: int | None = None) -> Callable[P, Process]:
    """Return ``function`` so that it starts on ``host``.

    It is a program of `midstream.remote`.

    stdin and stdout of the process then carry its own bytes. ``window``: bytes of unread output after which it blocks.
    """
    _declaration(function)
    signature = inspect.signature(function)

    def start(*positional: P.args, **named: P.kwargs) -> Process:
        arguments = signature.bind(*positional, **named).arguments
        return _start(host, name_of(function), job_line(function, arguments, program=True), window)

    return start


def _start(host: Host, name: str, line: bytes, window: int | None) -> Process:
    if not host.remote_python:
        raise no_python(host)
    argv = [host.remote_python, *isolation(name), "-c", BOOTSTRAP]
    process = host.open(argv) if window is None else host.open(argv, window=window)
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
        raise _no_answer(host, host.remote_python, name, code, process.stderr_text())
    except (OSError, EOFError) as error:  # a timeout is one, too
        process.close()
        raise ConnectionLostError(f"{host.name}: lost contact as {name} was started", "run the same again") from error
    except BaseException:
        process.close()
        raise


def no_python(host: Host) -> HostError:
    """Return the error for a host without Python: it can only be watched."""
    return HostError(f"{host.name}: no Python 3.8 or newer there", "install python3, or name one with `python:`")


def _no_answer(host: Host, python: str, function: str, code: int, stderr: str) -> RemoteError:
    words = stderr.strip().splitlines()
    return RemoteError(
        f"{host.name}: {function} gave no answer (exit {code}): {words[-1].strip() if words else 'no message'}",
        "Bootstrap",
        f"{python} has to be Python 3.8 or newer there; `python:` in the fleet file names another",
    )
