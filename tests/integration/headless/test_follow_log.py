"""`--log RUN --follow`: the last lines, then new ones until the attempt ends."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from midstream.errors import ConnectionLostError, RemoteError
from midstream.fleet.fleet import LocalHostConfig
from midstream.headless.metrics_and_log import print_followed
from midstream.hosts.local_host import LocalHost
from midstream.hosts.reconnect import FOLLOWED_LOG
from midstream.operations.run_log import LAST_LINES, POLL_INTERVAL, RunLog
from midstream.output import Output
from midstream.watch.snapshot import RunView
from midstream_core import records
from pages.json_lines import problem_of
from support.run_directory import RunDirectory

ENDED = replace(records.this_process(), start_ticks=1)
RUN = RunView("run", "here", None, None, 1, None, True)


class Followed:
    """A log that is followed: what happens between two reads, and what is printed."""

    def __init__(self, root: Path) -> None:
        self.run = RunDirectory(root, "run")
        self.host = LocalHost("here", LocalHostConfig(root=str(root)))
        self.path = Path(self.run.paths.attempt(1).log())
        self.events: list[Callable[[], object]] = []
        self.waits: list[float] = []
        self.values, self.messages = io.StringIO(), io.StringIO()

    def write(self, *lines: object) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.writelines(f"{line}\n" for line in lines)

    def end(self, state: str, step: int) -> None:
        """Write the status of an attempt whose process is not running any more."""
        self.run.status(1, state, step, ENDED)

    def follow(self, as_json: bool = False) -> None:
        def wait(seconds: float) -> None:
            self.waits.append(seconds)
            self.events.pop(0)()

        events = RunLog(RUN, self.host, str(self.path)).follow(wait)
        print_followed(RUN, events, Output(as_json, self.values, self.messages))


@pytest.fixture
def followed(tmp_path: Path) -> Followed:
    found = Followed(tmp_path)
    found.run.status(1, records.TRAINING, 3)
    return found


def test_last_lines_are_printed_and_then_new_ones_until_the_end(followed: Followed) -> None:
    followed.write(*range(100))

    def end() -> None:
        followed.write("saved")
        followed.end(records.STOPPED, 7)

    followed.events = [lambda: followed.write("step 4", "step 5"), lambda: None, end]
    followed.follow()
    last = [str(number) for number in range(100 - LAST_LINES, 100)]
    assert followed.values.getvalue().splitlines() == [*last, "step 4", "step 5", "saved"]
    assert followed.messages.getvalue() == "midstream: attempt 1 of run has ended: stopped at step 7\n"
    assert followed.waits == [POLL_INTERVAL] * 3


def test_lines_of_a_followed_log_are_events(followed: Followed) -> None:
    followed.write("one")
    followed.end(records.FAILED, 2)
    followed.follow(as_json=True)
    line, result = map(json.loads, followed.values.getvalue().splitlines())
    assert line == {"event": "log", "run": "run", "attempt": 1, "line": "one"}
    assert (result["ok"], result["state"], result["step"]) == (True, "failed", 2)
    assert [problem_of(value) for value in (line, result)] == ["", ""]


def test_host_that_does_not_answer_is_named_once_and_tried_again(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed.write("one")
    call = LocalHost.call

    def lose() -> None:
        def refuse(*_: object) -> None:
            raise ConnectionLostError("here: the connection was lost")

        monkeypatch.setattr(LocalHost, "call", refuse)

    def answer() -> None:
        monkeypatch.setattr(LocalHost, "call", call)
        followed.write("two")
        followed.end(records.FINISHED, 9)

    followed.events = [lose, lambda: None, answer]
    followed.follow()
    assert followed.values.getvalue().splitlines() == ["one", "two"]
    assert followed.messages.getvalue().count("here: the connection was lost; trying again") == 1
    assert followed.waits == [POLL_INTERVAL, FOLLOWED_LOG.first_delay, FOLLOWED_LOG.first_delay]


def test_log_that_cannot_be_read_ends_following(followed: Followed) -> None:
    with pytest.raises(RemoteError):
        followed.follow()
    assert followed.waits == []


def test_line_is_printed_once_its_end_is_written(followed: Followed) -> None:
    def add(text: str) -> None:
        with followed.path.open("a") as file:
            file.write(text)

    def end() -> None:
        add("killed while it wro")
        followed.end(records.FAILED, 4)

    followed.write("one")
    followed.events = [lambda: add("step"), lambda: add(" 4"), lambda: add("\n"), lambda: add("\r 5%"), end]
    followed.follow()
    assert followed.values.getvalue().split("\n") == ["one", "step 4", "\\r 5%", "killed while it wro", ""]
