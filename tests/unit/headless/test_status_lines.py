"""JSON lines of `--status`: each host and run once, as soon as it is known."""

from __future__ import annotations

import io
import json
from dataclasses import replace

from midstream.headless.status_lines import StatusLines
from midstream.listing import filter_parser, fleet_fields
from midstream.output import Output
from midstream.watch.snapshot import CONNECTING, DOWN, RunView
from support.tui import fleets


class Written:
    """The lines that are written for one snapshot after the other."""

    def __init__(self, condition: str = "") -> None:
        self._data = io.StringIO()
        parsed = filter_parser.parse(condition, fleet_fields.RUNS, fleets.NOW) if condition else None
        self.lines = StatusLines(Output(True, data=self._data), parsed)

    def take(self) -> list[str]:
        """Return the names of hosts, and `run@host` of runs, since the last call."""
        events = [json.loads(line) for line in self._data.getvalue().splitlines()]
        self._data.seek(0)
        self._data.truncate()
        return [each["name"] if each["event"] == "host" else f"{each['run']}@{each['host']}" for each in events]


def member(host: str, process: int, state: str = "training") -> RunView:
    made = fleets.run("group", host, state, step=5)
    assert made.status is not None
    return replace(made, status=replace(made.status, process=process, processes=2))


def test_hosts_and_their_runs_are_written_once_when_they_answer() -> None:
    written = Written()
    waiting = fleets.host("b", CONNECTING, machine=None)
    a, run = fleets.host("a"), fleets.run("one", "a", step=5)
    written.lines.update(fleets.snapshot([fleets.host("a", CONNECTING), waiting], []))
    assert written.take() == []
    written.lines.update(fleets.snapshot([a, waiting], [run]))
    assert written.take() == ["a", "one@a"]
    written.lines.update(fleets.snapshot([a, waiting], [run]))
    assert written.take() == []
    down = fleets.host("b", DOWN)
    written.lines.update(fleets.snapshot([a, down], [run]))
    assert written.take() == ["b"]
    written.lines.finish(fleets.snapshot([a, down], [run]))
    assert written.take() == []


def test_run_waits_for_the_listing_of_its_bucket() -> None:
    written = Written()
    slow = replace(fleets.run("slow", "a", step=5), store="gs://bucket/x", checkpoints_listed=False)
    plain = fleets.run("plain", "a", step=5)
    written.lines.update(fleets.snapshot([fleets.host("a")], [plain, slow]))
    assert written.take() == ["a", "plain@a"]
    written.lines.update(fleets.snapshot([fleets.host("a")], [plain, replace(slow, checkpoints_listed=True)]))
    assert written.take() == ["slow@a"]


def test_what_is_still_unknown_is_written_at_the_end() -> None:
    written = Written()
    slow = replace(fleets.run("slow", "a", step=5), store="gs://bucket/x", checkpoints_listed=False)
    written.lines.finish(fleets.snapshot([fleets.host("a"), fleets.host("b", CONNECTING)], [slow]))
    assert written.take() == ["a", "slow@a", "b"]


def test_filtered_run_of_several_hosts_waits_for_all_of_them() -> None:
    written = Written("state:training")
    hosts = [fleets.host("a"), fleets.host("b", CONNECTING)]
    alone, ended = fleets.run("alone", "a", step=5), fleets.run("ended", "a", "stopped", step=5)
    written.lines.update(fleets.snapshot(hosts, [alone, ended, member("a", 0)]))
    assert written.take() == ["alone@a"]
    runs = [alone, ended, member("a", 0), member("b", 1)]
    written.lines.finish(fleets.snapshot([fleets.host("a"), fleets.host("b")], runs))
    assert written.take() == ["group@a", "group@b"]
