"""The probe: everything once, then news alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from midstream.fleet.fleet import LocalHost
from midstream.hosts.local_host import LocalMachine
from midstream.hosts.rpc.remote_call import start_program
from midstream.remote.machine import gauges, probe
from midstream_engine import records
from support.run_directory import RunDirectory, dead_process, row


class Told:
    """A probe under a root, and its lines."""

    def __init__(self, root: Path, **options: Any):
        self.lines: list[dict[str, Any]] = []
        self._probe = probe.Probe(str(root), self._emit, devices=2, **options)

    def _emit(self, event: str, **fields: Any) -> None:
        # As it travels: what JSON cannot carry has no place in a line.
        self.lines.append(json.loads(json.dumps({"event": event, **fields})))

    def look(self, event: str | None = None) -> list[dict[str, Any]]:
        """Look once: the new lines, of one kind where ``event`` is given."""
        self.lines.clear()
        self._probe.look()
        assert self.lines[-1]["event"] == "beat"
        return [line for line in self.lines if event in (None, line["event"])]

    def run(self) -> dict[str, Any]:
        """Look once: everything that ``run`` lines said."""
        return {key: value for line in self.look("run") for key, value in line.items()}


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path)


@pytest.fixture
def told(tmp_path: Path) -> Told:
    return Told(tmp_path)


def test_a_run_is_told_whole_and_then_only_its_news(run: RunDirectory, told: Told):
    run.fence(1)
    run.lineage({"attempt": 1, "epoch": 1})
    run.status(1, records.TRAINING, 7)
    run.rows(1, 0, 1)
    name = run.checkpoint(5)
    first = told.run()
    assert first["run"] == "run"
    assert first["fence"]["epoch"] == 1
    assert first["lineage"]["attempts"][0]["attempt"] == 1
    assert (first["attempt"], first["attempts"], first["running"], first["trouble"]) == (1, [1], True, "")
    assert first["status"]["state"] == records.TRAINING
    assert first["checkpoints"] == [
        {
            "name": name, "step": 5, "attempt": 1, "epoch": 1, "complete": True, "accepted": True, "size": 42,
            "created": 1005.0, "root_digest": "d" * 64, "pinned": False, "damaged": "",
        }
    ]  # fmt: skip
    assert [line["event"] for line in told.look()] == ["beat"]
    run.status(1, records.SAVING, 9)
    assert set(told.run()) == {"event", "run", "status"}


def test_metrics_are_told_by_whole_lines_and_once(run: RunDirectory, told: Told):
    run.rows(1, 0, 1)
    [line] = told.look("metrics")
    assert (line["attempt"], line["offset"]) == (1, 0)
    assert [json.loads(text) for text in line["text"].splitlines()] == [row(0), row(1)]
    run.text(1, '{"global_step": 2, "train/lo')
    assert told.look("metrics") == []
    run.text(1, 'ss": 0.5}\n{"glob')
    [second] = told.look("metrics")
    assert second["offset"] == line["end"]
    assert second["text"] == '{"global_step": 2, "train/loss": 0.5}\n'
    assert second["end"] == second["offset"] + len(second["text"])


def test_long_metrics_come_in_pieces_that_join(run: RunDirectory, told: Told, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(probe, "CHUNK", 100)
    run.rows(1, *range(50))
    lines = told.look("metrics")
    assert len(lines) > 10
    assert "".join(line["text"] for line in lines) == Path(run.attempt(1).metrics).read_text()
    assert [line["offset"] for line in lines[1:]] == [line["end"] for line in lines[:-1]]


def test_an_operator_who_knows_the_beginning_is_told_the_rest(run: RunDirectory, told: Told, tmp_path: Path):
    run.rows(1, 0, 1)
    run.rows(2, 2)
    [first, second] = told.look("metrics")
    known = {"run": {"1": [first["inode"], first["end"]], "2": [second["inode"], second["end"]]}}
    run.rows(2, 3)
    [line] = Told(tmp_path, known=known).look("metrics")
    assert (line["attempt"], line["offset"], json.loads(line["text"])) == (2, second["end"], row(3))


@pytest.mark.parametrize("how", ["replaced", "shorter"])
def test_metrics_that_begin_anew_are_told_from_their_beginning(run: RunDirectory, told: Told, how: str):
    run.rows(1, 0, 1, 2)
    told.look()
    metrics = Path(run.attempt(1).metrics)
    if how == "replaced":
        records.write_bytes(str(metrics), metrics.read_bytes() + b'{"global_step": 3}\n')
    else:
        metrics.write_text('{"global_step": 0}\n')
    [line] = told.look("metrics")
    assert line["offset"] == 0
    assert line["text"] == metrics.read_text()


def test_a_log_is_told_from_near_its_end_and_as_it_grows(
    run: RunDirectory, told: Told, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(probe, "LOG_TAIL", 100)
    run.log(1, "".join(f"line {number:03d}\n" for number in range(100)))
    [line] = told.look("log")
    assert line["first"]
    assert line["text"].splitlines() == [f"line {number:03d}" for number in range(89, 100)]
    run.log(1, "unfinished")
    assert told.look("log") == []
    run.log(1, " line\n")
    [line] = told.look("log")
    assert (line["first"], line["text"]) == (False, "unfinished line\n")
    run.log(2, "another attempt\n")
    [line] = told.look("log")
    assert (line["attempt"], line["first"], line["text"]) == (2, True, "another attempt\n")


def test_a_checkpoint_is_complete_once_it_has_a_manifest(run: RunDirectory, told: Told):
    run.checkpoint(5, complete=False)
    [point] = told.run()["checkpoints"]
    assert (point["complete"], point["accepted"]) == (False, False)
    run.checkpoint(5)
    [point] = told.run()["checkpoints"]
    assert (point["complete"], point["accepted"]) == (True, True)


def test_a_seal_takes_acceptance_from_what_was_written_past_it(run: RunDirectory, told: Told):
    run.fence(1)
    run.checkpoint(5)
    run.checkpoint(9)
    assert [point["accepted"] for point in told.run()["checkpoints"]] == [True, True]
    run.fence(2, "there", 5, [{"epoch": 1, "step": 5}])
    assert [point["accepted"] for point in told.run()["checkpoints"]] == [True, False]


def test_pins_come_and_go(run: RunDirectory, told: Told):
    name = run.checkpoint(5)
    told.look()
    pin = Path(run.paths.pins) / "m1.json"
    records.Pin(name, 4e9).write(str(pin))
    assert told.run()["checkpoints"][0]["pinned"] is True
    pin.unlink()
    assert told.run()["checkpoints"][0]["pinned"] is False


def test_a_process_that_is_gone_is_not_alive(run: RunDirectory, told: Told):
    run.status(1, records.TRAINING, 3, dead_process())
    assert told.run()["running"] is False
    run.status(2, records.STARTING, 0)
    news = told.run()
    assert (news["attempt"], news["running"]) == (2, True)


def test_runs_that_vanish_are_gone(run: RunDirectory, told: Told):
    told.look()
    shutil.rmtree(run.paths.dir)
    assert told.look("gone") == [{"event": "gone", "run": "run"}]
    assert told.look("gone") == []


def test_what_cannot_be_read_is_damaged_and_what_was_known_stands(run: RunDirectory, told: Told):
    run.fence(1)
    told.look()
    Path(run.paths.fence).write_text('{"epoch": 2')
    news = told.run()
    assert news["damaged"]["fence.json"].startswith("not JSON")
    assert "fence" not in news
    assert told.look("run") == []  # told once
    run.fence(2)
    news = told.run()
    assert (news["fence"]["epoch"], news["damaged"]) == (2, {})


def test_one_run_in_trouble_does_not_hide_another(run: RunDirectory, told: Told, tmp_path: Path):
    Path(run.paths.fence).write_text("{")
    other = RunDirectory(tmp_path, "zebra")
    other.rows(1, 0)
    assert {line["run"] for line in told.look("run")} == {"run", "zebra"}
    assert len(told.lines) > 3
    assert [line["run"] for line in told.lines if line["event"] == "metrics"] == ["zebra"]


def test_a_beat_describes_the_machine(tmp_path: Path):
    [beat] = Told(tmp_path / "not" / "there").look("beat")
    assert 0 <= beat["cpu_used"] <= 1
    assert 0 < beat["memory_used"] < beat["memory_total"]
    assert 0 < beat["disk_free"] <= beat["disk_total"]
    assert beat["accelerators"] == [{"index": 0, "kind": "cpu"}, {"index": 1, "kind": "cpu"}]
    identity = gauges.identity()
    assert identity["cpus"] >= 1
    assert identity["platform"].startswith("Linux-")


def test_as_a_program_it_answers_pings_and_ends_with_its_operator(tmp_path: Path):
    host = LocalMachine("here", LocalHost(root=str(tmp_path)))
    process = start_program(host, "machine.probe.main", {"root": host.root, "interval": 0.05, "devices": 1})
    hello = json.loads(process.stdout.readline())
    assert hello["event"] == "hello"
    process.stdin.write(b'{"ping": 41}\n{"ping": 42}\n')
    process.stdin.flush()
    answers = []
    while len(answers) < 2:
        line = json.loads(process.stdout.readline())
        answers += [line["ping"]] if line["event"] == "clock" else []
    assert answers == [41, 42]
    process.stdin.close()
    assert process.wait(20) == 0
    process.close()
