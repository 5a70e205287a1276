"""Run our own functions on a host where nothing is installed: their source travels over the channel.

The host's Python is started with a short bootstrap. It reads one line of JSON with the sources of
`midstream_engine.records` and of the `midstream.remote` modules that are needed, makes modules of them, and hands the
rest of stdin to what was asked for: a *function* whose result comes back as one JSON line, or a *program* that owns
stdin and stdout from then on.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import json
import threading
import time
from collections.abc import Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

from midstream.errors import HostError, LostContact, RemoteError
from midstream.hosts.deadline import Deadline
from midstream.hosts.host import Host, Process
from midstream.hosts.rpc.answer_limits import FORCED, PREAMBLE_LIMIT, STDERR_LIMIT, answer_limit, decode, too_large
from midstream.hosts.rpc.repeatable_calls import REPEATABLE
from midstream.hosts.rpc.result_checks import result_of

RECORDS = "midstream_engine.records"
SHAPES = "midstream_engine.json_shapes"  # which the records import
BEGIN = b"\0midstream\n"  # what a program's stdout begins with
START_TIMEOUT = 60.0  # seconds until a program has begun
ENDING = 10.0  # seconds that a program may take to end once its stdout is closed
TRIES = 3  # calls of a function that may be repeated, where contact is lost in the middle of one
PAUSE = 1.0  # seconds between two of them

# No module is ever imported from the directory that an interpreter happens to start in: -I leaves it out, and with it
# PYTHON* and the user's packages. What needs a client of a bucket needs those, and has the first line of the bootstrap
# instead, before which `sys` alone, a part of the interpreter, is imported (-P exists from Python 3.11 on).
CLIENTS = "gcs"
# stdout belongs to the answer: what a module prints by mistake goes to stderr. So do empty lines, every two seconds: a
# server may close a channel on which nothing moves (ChannelTimeout).
BOOTSTRAP = """\
import sys; sys.path[:] = [place for place in sys.path if place]
import json, types, os, time, _thread
def beat():
    try:
        while True:
            time.sleep(2.0); os.write(2, b"\\n")
    except OSError: return
_thread.start_new_thread(beat, ())
out = os.fdopen(os.dup(1), "wb"); os.dup2(2, 1)
job = json.loads(sys.stdin.buffer.readline())
for name, text in job["modules"]:
    module = types.ModuleType(name)
    if text is None: module.__path__ = []
    sys.modules[name] = module
    if text is not None: exec(compile(text, "<" + name + ">", "exec"), module.__dict__)
    head, _, tail = name.rpartition(".")
    if head: setattr(sys.modules[head], tail, module)
function = getattr(sys.modules[job["module"]], job["function"])
if job["program"]:
    sys.stdout = types.SimpleNamespace(buffer=out, write=lambda text: out.write(text.encode()), flush=out.flush)
    out.write(b"\\0midstream\\n"); out.flush()
    code = function(**job["arguments"]); out.flush()
    sys.exit(code if isinstance(code, int) else 0)
else:
    try: answer = {"value": function(**job["arguments"])}
    except Exception as error: answer = {"error": str(error) or repr(error), "kind": type(error).__name__}
    out.write(b"\\n" + json.dumps(answer).encode() + b"\\n"); out.flush()
"""


def isolation(function: str) -> list[str]:
    """Flags of the interpreter for ``midstream.remote.<function>``."""
    return [] if function.startswith(CLIENTS) else ["-I"]


def _split(function: str) -> tuple[str, str]:
    module, _, name = function.rpartition(".")
    parts = module.split(".")
    if not all(part.isidentifier() for part in (*parts, name)) or not _source(f"midstream.remote.{module}").is_file():
        raise ValueError(f"{function!r} is not package.module.function of midstream.remote")
    return module, name


@functools.cache
def _modules(module: str) -> tuple[tuple[str, str | None], ...]:
    """(name, source) of everything that ``midstream.remote.<module>`` needs, in the order of their imports. Packages
    have no source: the far side knows of them only what is sent."""
    found: dict[str, str | None] = {"midstream_engine": None, "midstream": None, "midstream.remote": None}

    def add(name: str) -> None:
        if name in found:
            return
        package = name.rpartition(".")[0]
        if package.startswith("midstream.remote."):
            found.setdefault(package, None)
        text = _source(name).read_text()
        for needed in _imports(text):
            if needed == RECORDS:  # dear to read: not everything needs it
                found.update({each: _source(each).read_text() for each in (SHAPES, RECORDS)})
            else:
                add(needed)
        found[name] = text

    add(f"midstream.remote.{module}")
    return tuple(found.items())


_PARSING = threading.Lock()  # CPython 3.11's parser counts its depth once for all threads, and trips over itself


def _imports(text: str) -> list[str]:
    """Full names of the modules of ``midstream.remote`` that a source imports, and of the records."""
    with _PARSING:
        nodes = list(ast.walk(ast.parse(text)))
    names = []
    for node in nodes:
        module = (node.module or "") if isinstance(node, ast.ImportFrom) else ""
        if module.startswith("midstream.remote."):
            for alias in node.names if isinstance(node, ast.ImportFrom) else ():
                below = f"{module}.{alias.name}"
                names.append(below if _source(below).is_file() else module)
        elif module.split(".")[0] == "midstream_engine":
            names.append(RECORDS)
    return names


def _source(name: str) -> Traversable:
    """The file of a module, whether it is there or not."""
    top, *folders, stem = name.split(".")
    return resources.files(top).joinpath(*folders, f"{stem}.py")


def job_line(function: str, arguments: Mapping[str, Any], *, program: bool) -> bytes:
    """The first line that the bootstrap reads."""
    module, name = _split(function)
    return (
        json.dumps(
            {
                "modules": _modules(module),
                "module": f"midstream.remote.{module}",
                "function": name,
                "arguments": dict(arguments),
                "program": program,
            }
        ).encode()
        + b"\n"
    )


def call_function(host: Host, python: str, function: str, arguments: Mapping[str, Any], timeout: float | None) -> Any:
    """What `Host.call` does, for every kind of host. RemoteError where the function raised or Python did not run.
    LostContact where no answer came: the function may have run, or may still be running."""
    if not python:
        raise no_python(host)
    line = job_line(function, arguments, program=False)
    for tries_left in reversed(range(TRIES if function in REPEATABLE else 1)):
        try:
            return result_of(host.name, function, arguments, _call_once(host, python, function, line, timeout))
        except LostContact:
            if not tries_left:
                raise
            time.sleep(PAUSE)
            with contextlib.suppress(HostError):  # the next try says what is wrong
                host.connect()


def _call_once(host: Host, python: str, function: str, line: bytes, timeout: float | None) -> Any:
    argv = [python, *isolation(function), "-c", BOOTSTRAP]
    done = host.run(argv, stdin=line, timeout=timeout, limit=answer_limit(function), what=function)
    answer_line = done.stdout.rstrip(b"\n").rpartition(b"\n")[2]  # the interpreter may have printed before it
    try:
        answer = decode(answer_line)
    except ValueError as error:
        if answer_line and not done.returncode:
            raise HostError(
                f"{host.name}: {function} answered what cannot be read: {error}", f"look at what answers on {host.name}"
            ) from None
        if done.returncode < 0:
            raise LostContact(
                f"{host.name}: {function} was ended by signal {-done.returncode} before it answered",
                "was it short of memory? run the same again",
            ) from None
        raise _silent(host, python, function, done.returncode, done.stderr.decode(errors="replace")) from None
    return answer


def start_program(host: Host, function: str, arguments: Mapping[str, Any], *, window: int | None = None) -> Process:
    """Start ``midstream.remote.<module>.<function>`` on the host; stdin and stdout then carry its own bytes."""
    if not host.far_python:
        raise no_python(host)
    argv = [host.far_python, *isolation(function), "-c", BOOTSTRAP]
    process = host.open(argv) if window is None else host.open(argv, window=window)
    try:
        with contextlib.suppress(BrokenPipeError):  # it has ended already; what it wrote says why
            process.stdin.write(job_line(function, arguments, program=True))
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
                raise too_large(host.name, f"{function}, before it began,", PREAMBLE_LIMIT, FORCED)
        code = process.wait(ENDING)
        raise _silent(host, host.far_python, function, code, process.stderr_text())
    except (OSError, EOFError) as error:  # a timeout is one, too
        process.close()
        raise LostContact(f"{host.name}: lost contact as {function} was started", "run the same again") from error
    except BaseException:
        process.close()
        raise


def no_python(host: Host) -> HostError:
    """The host can be looked at, and no more."""
    return HostError(f"{host.name}: no Python 3.8 or newer there", "install python3, or name one with `python:`")


def _silent(host: Host, python: str, function: str, code: int, stderr: str) -> RemoteError:
    words = stderr.strip().splitlines()
    return RemoteError(
        f"{host.name}: {function} gave no answer (exit {code}): {words[-1].strip() if words else 'no message'}",
        "Bootstrap",
        f"{python} has to be Python 3.8 or newer there; `python:` in the fleet file names another",
    )
