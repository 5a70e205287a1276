"""The probe: a complete report, then changes only."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from midstream.fleet.fleet import LocalHostConfig
from midstream.hosts.local_host import LocalHost
from midstream.hosts.rpc.remote_call import start_program
from midstream_core import records
from midstream_host.machine import gauges, probe
from support.run_directory import RunDirectory, dead_process, row


class Probed:
    """A probe of a root, and its lines."""

    def __init__(self, root: Path, **options: Any) -> None:
        self.lines: list[dict[str, Any]] = []
        self._probe = probe.Probe(str(root), self._emit, devices=2, **options)

    def _emit(self, event: str, **fields: Any) -> None:
        # As it is sent: a line has only what JSON can encode.
        self.lines.append(json.loads(json.dumps({"event": event, **fields})))

    def poll(self, event: str | None = None) -> list[dict[str, Any]]:
        """Poll once; returns the new lines, of one kind if ``event`` is given."""
        self.lines.clear()
        self._probe.poll()
        assert self.lines[-1]["event"] == "beat"
        return [line for line in self.lines if event in (None, line["event"])]

    def run(self) -> dict[str, Any]:
        """Poll once; returns the merged fields of the ``run`` lines."""
        return {key: value for line in self.poll("run") for key, value in line.items()}


@pytest.fixture
def probed(tmp_path: Path) -> Probed:
    return Probed(tmp_path)


def test_run_is_reported_completely_then_changes_only(run: RunDirectory, probed: Probed) -> None:
    run.fence(1)
    run.lineage({"attempt": 1, "epoch": 1})
    run.status(1, records.TRAINING, 7)
    run.rows(1, 0, 1)
    name = run.checkpoint(5)
    first = probed.run()
    assert first["run"] == "run"
    assert first["fence"]["epoch"] == 1
    assert first["lineage"]["attempts"][0]["attempt"] == 1
    assert (first["attempt"], first["attempts"], first["running"], first["problem"]) == (1, [1], True, "")
    assert first["status"]["state"] == records.TRAINING
    assert first["checkpoints"] == [
        {
            "name": name, "step": 5, "attempt": 1, "epoch": 1, "complete": True, "accepted": True, "size": 42,
            "created": 1005.0, "root_digest": "d" * 64, "pinned": False, "damaged": "", "start": 0,
        }
    ]  # fmt: skip
    assert [line["event"] for line in probed.poll()] == ["beat"]
    run.status(1, records.SAVING, 9)
    assert set(probed.run()) == {"event", "run", "status"}


def test_metrics_are_reported_by_complete_lines_once(run: RunDirectory, probed: Probed) -> None:
    run.rows(1, 0, 1)
    [line] = probed.poll("metrics")
    assert (line["attempt"], line["offset"]) == (1, 0)
    assert [json.loads(text) for text in line["text"].splitlines()] == [row(0), row(1)]
    run.text(1, '{"global_step": 2, "train/lo')
    assert probed.poll("metrics") == []
    run.text(1, 'ss": 0.5}\n{"glob')
    [second] = probed.poll("metrics")
    assert second["offset"] == line["end"]
    assert second["text"] == '{"global_step": 2, "train/loss": 0.5}\n'
    assert second["end"] == second["offset"] + len(second["text"])


def test_long_metrics_are_reported_in_joining_chunks(
    run: RunDirectory, probed: Probed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "CHUNK", 100)
    run.rows(1, *range(50))
    lines = probed.poll("metrics")
    assert len(lines) > 10
    assert "".join(line["text"] for line in lines) == Path(run.attempt(1).metrics).read_text()
    assert [line["offset"] for line in lines[1:]] == [line["end"] for line in lines[:-1]]


def test_known_metrics_are_not_reported_again(run: RunDirectory, probed: Probed, tmp_path: Path) -> None:
    run.rows(1, 0, 1)
    run.rows(2, 2)
    [first, second] = probed.poll("metrics")
    known = {"run": {"1": [first["inode"], first["end"]], "2": [second["inode"], second["end"]]}}
    run.rows(2, 3)
    [line] = Probed(tmp_path, positions=known).poll("metrics")
    assert (line["attempt"], line["offset"], json.loads(line["text"])) == (2, second["end"], row(3))


@pytest.mark.parametrize("how", ["replaced", "shorter"])
def test_restarted_metrics_are_reported_from_the_start(run: RunDirectory, probed: Probed, how: str) -> None:
    run.rows(1, 0, 1, 2)
    probed.poll()
    metrics = Path(run.attempt(1).metrics)
    if how == "replaced":
        records.write_bytes(str(metrics), metrics.read_bytes() + b'{"global_step": 3}\n')
    else:
        metrics.write_text('{"global_step": 0}\n')
    [line] = probed.poll("metrics")
    assert line["offset"] == 0
    assert line["text"] == metrics.read_text()


def test_log_is_reported_from_its_tail_and_as_it_grows(
    run: RunDirectory, probed: Probed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "LOG_TAIL", 100)
    run.log(1, "".join(f"line {number:03d}\n" for number in range(100)))
    [line] = probed.poll("log")
    assert line["first"]
    assert line["text"].splitlines() == [f"line {number:03d}" for number in range(89, 100)]
    run.log(1, "unfinished")
    assert probed.poll("log") == []
    run.log(1, " line\n")
    [line] = probed.poll("log")
    assert (line["first"], line["text"]) == (False, "unfinished line\n")
    run.log(2, "another attempt\n")
    [line] = probed.poll("log")
    assert (line["attempt"], line["first"], line["text"]) == (2, True, "another attempt\n")


def test_checkpoint_is_complete_with_its_manifest(run: RunDirectory, probed: Probed) -> None:
    run.checkpoint(5, complete=False)
    [checkpoint] = probed.run()["checkpoints"]
    assert (checkpoint["complete"], checkpoint["accepted"]) == (False, False)
    run.checkpoint(5)
    [checkpoint] = probed.run()["checkpoints"]
    assert (checkpoint["complete"], checkpoint["accepted"]) == (True, True)


def test_checkpoint_past_the_seal_is_not_accepted(run: RunDirectory, probed: Probed) -> None:
    run.fence(1)
    run.checkpoint(5)
    run.checkpoint(9)
    assert [checkpoint["accepted"] for checkpoint in probed.run()["checkpoints"]] == [True, True]
    run.fence(2, "there", 5, [{"epoch": 1, "step": 5}])
    assert [checkpoint["accepted"] for checkpoint in probed.run()["checkpoints"]] == [True, False]


def test_pins_are_reported_as_they_change(run: RunDirectory, probed: Probed) -> None:
    name = run.checkpoint(5)
    probed.poll()
    pin = Path(run.paths.pins) / "m1.json"
    records.Pin(name, 4e9).write(str(pin))
    assert probed.run()["checkpoints"][0]["pinned"] is True
    pin.unlink()
    assert probed.run()["checkpoints"][0]["pinned"] is False


def test_exited_process_is_not_running(run: RunDirectory, probed: Probed) -> None:
    run.status(1, records.TRAINING, 3, dead_process())
    assert probed.run()["running"] is False
    run.status(2, records.STARTING, 0)
    changes = probed.run()
    assert (changes["attempt"], changes["running"]) == (2, True)


def test_removed_run_is_reported_once(run: RunDirectory, probed: Probed) -> None:
    probed.poll()
    shutil.rmtree(run.paths.dir)
    assert probed.poll("removed") == [{"event": "removed", "run": "run"}]
    assert probed.poll("removed") == []


def test_unreadable_record_is_reported_as_damaged(run: RunDirectory, probed: Probed) -> None:
    run.fence(1)
    probed.poll()
    Path(run.paths.fence).write_text('{"epoch": 2')
    changes = probed.run()
    assert changes["damaged"]["fence.json"].startswith("not JSON")
    assert "fence" not in changes
    assert probed.poll("run") == []  # reported once
    run.fence(2)
    changes = probed.run()
    assert (changes["fence"]["epoch"], changes["damaged"]) == (2, {})


def test_damaged_run_does_not_hide_another(run: RunDirectory, probed: Probed, tmp_path: Path) -> None:
    Path(run.paths.fence).write_text("{")
    other = RunDirectory(tmp_path, "zebra")
    other.rows(1, 0)
    assert {line["run"] for line in probed.poll("run")} == {"run", "zebra"}
    assert len(probed.lines) > 3
    assert [line["run"] for line in probed.lines if line["event"] == "metrics"] == ["zebra"]


def test_beat_describes_the_machine(tmp_path: Path) -> None:
    [beat] = Probed(tmp_path / "not" / "there").poll("beat")
    assert 0 <= beat["cpu_used"] <= 1
    assert 0 < beat["memory_used"] < beat["memory_total"]
    assert 0 < beat["disk_free"] <= beat["disk_total"]
    assert beat["accelerators"] == [{"index": 0, "kind": "cpu"}, {"index": 1, "kind": "cpu"}]
    identity = gauges.identity()
    assert identity["cpus"] >= 1
    assert identity["platform"].startswith("Linux-")


def test_main_answers_pings_and_exits_with_stdin(tmp_path: Path) -> None:
    host = LocalHost("here", LocalHostConfig(root=str(tmp_path)))
    process = start_program(host, probe.main)(root=host.root, interval=0.05, devices=1)
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


def test_exit_record_of_the_first_failure_is_reported(run: RunDirectory, probed: Probed) -> None:
    run.status(1, records.TRAINING, 7, dead_process())
    assert probed.run()["exit"] is None
    paths = run.attempt(1)
    for process, time_ended in ((0, 20.0), (1, 10.0)):
        records.ProcessExit(process, None, time_ended, "SIGKILL", message=f"process {process}").write(
            paths.exit(process)
        )
        records.Status(
            records.TRAINING, 7, process, heartbeat=1.0, processes=2, **dead_process().to_json()
        ).write(paths.status(process))  # fmt: skip
    assert probed.run()["exit"]["message"] == "process 1"
    run.status(2, records.TRAINING, 8)
    assert probed.run()["exit"] is None, "the newest attempt runs"
