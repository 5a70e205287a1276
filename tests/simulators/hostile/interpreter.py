"""The Python interpreter of a hostile host: it runs the real one and changes what that answers.

    interpreter.py CONTROL REAL_PYTHON [interpreter arguments...]

``CONTROL/spec.json`` says what to change (nothing where it is absent): ``place`` (rpc, probe, report, frames, begin,
stream), ``function`` (``module.name``; empty: any), ``action``, ``seed``. ``answer`` and ``lines`` take the place of
what the function would answer. Each change is appended to ``CONTROL/changed.jsonl``. Standard library only: it is
started with ``-I -S``.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))  # as a script

from simulators.hostile.frames import Frames
from simulators.hostile.values import DEEP, Mutator, dumps, raw

BEGIN = b"\0midstream\n"
ENDLESS = 3 << 30  # bytes after which endless output ends after all


class Host:
    def __init__(self, control: str, python: str, arguments: list[str]) -> None:
        self.control, self.python, self.arguments = control, python, arguments
        self.spec = _read_json(os.path.join(control, "spec.json")) or {}
        self.rng = random.Random(str(self.spec.get("seed", 0)))
        self.mutator = Mutator(self.rng, self.spec.get("canary", "true"))

    def run(self) -> int:
        job_line, rest = _first_line()
        job, line = json.loads(job_line), job_line + rest
        function = job["module"].removeprefix("midstream_host.") + "." + job["function"]
        if not self._wanted(function, job):
            return self._pass_on(line, job)
        if self.spec["place"] == "stream":
            return self._endless(function)
        if job["program"]:
            return self._program(function, line)
        return self._call(function, line)

    def _wanted(self, function: str, job: dict[str, Any]) -> bool:
        place, wanted = self.spec["place"], self.spec.get("function", "")
        if job["program"] if place == "rpc" else place in ("probe", "report", "frames", "begin") and not job["program"]:
            return False
        if wanted:
            return function in wanted.split(",")
        return place in ("rpc", "stream", "begin")

    def note(self, function: str, what: str) -> None:
        with open(os.path.join(self.control, "changed.jsonl"), "a") as file:
            file.write(json.dumps({"function": function, "what": what}) + "\n")

    def _child(self, line: bytes, stdout: int | None = None) -> subprocess.Popen[bytes]:
        child = subprocess.Popen([self.python, *self.arguments], stdin=subprocess.PIPE, stdout=stdout)

        def pump() -> None:
            try:
                data = line
                while data:
                    _write_all(stdin, data)
                    data = os.read(0, 65536)
            except OSError:
                pass  # the real program has ended
            finally:
                os.close(stdin)

        stdin = os.dup(child.stdin.fileno())  # type: ignore[union-attr]
        child.stdin.close()  # type: ignore[union-attr]
        threading.Thread(target=pump, daemon=True).start()
        return child

    def _pass_on(self, line: bytes, job: dict[str, Any]) -> int:
        """Run the real interpreter without a change, in place of this one. A call's input is complete at this point."""
        if job["program"]:
            return self._child(line).wait()
        again = os.memfd_create("stdin")
        _write_all(again, line)
        while data := os.read(0, 1 << 16):
            _write_all(again, data)
        os.lseek(again, 0, os.SEEK_SET)
        os.dup2(again, 0)
        os.execv(self.python, [self.python, *self.arguments])

    def _call(self, function: str, line: bytes) -> int:
        if "answer" in self.spec:  # of a function that does not run
            answer, code = dumps({"value": self.spec["answer"]}), 0
        else:
            child = self._child(line, stdout=subprocess.PIPE)
            answer = child.stdout.read().rstrip(b"\n")  # type: ignore[union-attr]
            code = child.wait()
        self.note(function, self.spec["action"])
        if not answer:
            return code
        _write_all(1, self._answer(json.loads(answer), answer, function) + b"\n")
        return code

    def _answer(self, value: Any, answer: bytes, function: str) -> bytes:
        action = self.spec["action"]
        if action == "value":
            new = (
                dict(value, value=self.mutator.value(value["value"])) if "value" in value else self.mutator.value(value)
            )
        elif action == "envelope":
            new = self.mutator.value(value)
        elif action == "error":
            text = self.rng.choice((self.mutator.text(), "", "\n\n", 7, None, ["x"], "x" * 100000, DEEP))
            kind = self.rng.choice((self.mutator.text(), "RecordError", "NoTreeError", "RefusedError", 7, None, []))
            new = {"error": text, "kind": kind} if self.rng.random() < 0.8 else {"error": text}
            self.mutator.what = ascii(new)[:60]
        elif action == "plant":
            new = dict(value, value=plant(value.get("value"), self.spec.get("plants", []), self.rng))
        elif action == "as it is":
            new, self.mutator.what = value, "as it is"
        elif action == "later value":  # a well-formed answer whose number, list or name is another one
            new = dict(value, value=self.mutator.value(value.get("value")))
        else:
            self.note(function, "raw " + action)
            return raw(answer, action, self.rng)
        self.note(function, self.mutator.what)
        return dumps(new)

    def _program(self, function: str, line: bytes) -> int:
        if "lines" in self.spec:  # of a program that does not run
            _write_all(1, BEGIN)
            self._lines(function, (dumps(each) + b"\n" for each in self.spec["lines"]))
            return 0
        child = self._child(line, stdout=subprocess.PIPE)
        out = child.stdout
        assert out is not None
        place, action = self.spec["place"], self.spec["action"]
        begin = out.readline()
        if place == "begin":
            self.note(function, action)
            begin = _begun(begin, action)
        _write_all(1, begin)
        if place == "frames":
            at, code = self.rng.choice((0, 0, 0, 1)), self.spec["code"].encode()
            frames = Frames(action, self.mutator, at, lambda data: _write_all(1, data), code)
            frames.copy(out.read, lambda what: self.note(function, f"{action} {what}"))
        elif place in ("probe", "report"):
            self._lines(function, iter(out.readline, b""))
        else:
            for data in iter(lambda: os.read(out.fileno(), 1 << 16), b""):
                _write_all(1, data)
        return child.wait()

    def _lines(self, function: str, lines: Iterator[bytes]) -> None:
        event, run, at = self.spec.get("event", ""), self.spec.get("run", ""), self.spec.get("at", 0)
        seen, changed = 0, False
        for line in lines:
            value = json.loads(line)
            named = value if isinstance(value, dict) else {}
            if changed or (event and named.get("event") != event) or (run and named.get("run") != run):
                _write_all(1, line)
                continue
            seen += 1
            if seen <= at:
                _write_all(1, line)
                continue
            changed = True
            about = named.get("event", "a line")
            if self.spec["action"] == "value":
                kept = {key: named[key] for key in self.spec.get("keep", ()) if key in named}
                rest = {key: item for key, item in named.items() if key not in kept} if named else value
                new = self.mutator.value(rest)
                line = dumps(dict(new, **kept) if isinstance(new, dict) else new) + b"\n"
                self.note(function, f"{about}: {self.mutator.what}")
            else:
                self.note(function, f"{about}: raw {self.spec['action']}")
                line = raw(line[:-1], self.spec["action"], self.rng) + b"\n"
            _write_all(1, line)

    def _endless(self, function: str) -> int:
        """Write endless output on stdout or stderr, with or without newlines."""
        action = self.spec["action"]
        self.note(function, action)
        if "begun" in action:
            _write_all(1, BEGIN)
        piece = {"text": b"x" * 65536, "lines": b"hello \x1b[2J\n" * 5000, "JSON": b'{"event": "x"}\n' * 4000}[
            next(word for word in ("text", "lines", "JSON") if word in action)
        ]
        where, written = 2 if "stderr" in action else 1, 0
        while written < ENDLESS:
            written += os.write(where, piece)
        return 0


def _begun(mark: bytes, action: str) -> bytes:
    return {
        "absent": b"", "twice": mark * 2, "noise before": b"Welcome!\r\n\x1b[2J no end" * 40 + mark,
        "noise and line": b"Welcome!\r\n\x1b]52;c;aGk=\x07\n" + mark, "cut": mark[:4] + b"\n",
        "after": mark + b"Segmentation fault\n", "long noise": b"n" * (80 << 20) + b"\n" + mark,
        "many lines": b"hello\n" * (2 << 20) + mark, "JSON before": b'{"event": "done"}\n' + mark,
    }[action]  # fmt: skip


BEGINS = (
    "absent",
    "twice",
    "noise before",
    "noise and line",
    "cut",
    "after",
    "long noise",
    "many lines",
    "JSON before",
)
STREAMS = (
    "text on stdout", "lines on stdout", "text on stderr", "lines on stderr", "text on stdout, begun",
    "lines on stdout, begun", "JSON on stdout, begun", "JSON on stdout",
)  # fmt: skip


def plant(value: Any, plants: list[dict[str, Any]], rng: random.Random) -> Any:
    """Add files to a list that a copy begins with: history's ``files``, a tree's ``objects`` and manifest."""
    if not isinstance(value, dict):
        return value
    chosen = rng.sample(plants, k=min(len(plants), rng.choice((1, 1, 2, 4))))
    if "files" in value:
        return dict(value, files=[*[{**each, "offset": 0} for each in chosen], *value["files"]])
    if "manifest" in value:
        text = json.loads(value["manifest"]) if isinstance(value["manifest"], str) else value["manifest"]
        text["objects"] = [*chosen, *text.get("objects", [])]
        return dict(value, manifest=json.dumps(text))
    return value


def _first_line() -> tuple[bytes, bytes]:
    """Return the job, and the bytes after it."""
    data = b""
    while b"\n" not in data:
        more = os.read(0, 1 << 16)
        if not more:
            break
        data += more
    line, end, rest = data.partition(b"\n")
    return line + end, rest


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view[: 1 << 20]) :]


def _read_json(path: str) -> Any:
    try:
        with open(path) as file:
            return json.load(file)
    except (OSError, ValueError):
        return None


if __name__ == "__main__":
    try:
        sys.exit(Host(sys.argv[1], sys.argv[2], sys.argv[3:]).run())
    except BrokenPipeError:
        os._exit(0)  # the operator has closed the channel
