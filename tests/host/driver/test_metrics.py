"""Readers of other trainers' metrics, on what the trainers and trackers wrote."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import sqlite3
from pathlib import Path

import pytest

from midstream_host.driver.metrics.metrics_reader import open_reader
from support.trainers.metric_sources import (
    SOURCES,
    Source,
    by_step,
    copy,
    drained,
    each_file,
    each_source,
    expected,
    losses,
    opened,
    rows_of,
    the_file,
)

__all__ = ["copy"]


@each_source
def test_rows_have_the_losses_that_were_logged(source: Source, copy) -> None:
    parts = drained(opened(source, copy(source)))
    assert {each.problem for each in parts} == {""}
    assert {each.part for each in parts} == {1}
    rows = rows_of(parts)
    wanted = expected(source)
    assert len(wanted) == source.rows
    assert losses(rows) == pytest.approx(wanted, rel=1e-6)
    assert [row["global_step"] for row in rows if "train/loss" in row] == list(range(source.rows))
    assert all("optim/learning_rate" in row for row in rows if "train/loss" in row)
    json.dumps(rows, allow_nan=False)


@each_source
def test_a_reader_continues_where_its_state_says(source: Source, copy) -> None:
    directory = copy(source)
    everything = rows_of(drained(opened(source, directory)))
    reader, found = opened(source, directory), []
    for _ in range(5):
        found += rows_of(reader.poll())
        reader = opened(source, directory, json.loads(json.dumps(reader.state)))
    assert found == everything


@each_file
def test_a_file_that_grows_byte_by_byte_gives_each_row_once(source: Source, copy, tmp_path: Path) -> None:
    directory = copy(source)
    file = the_file(source, directory)
    everything = rows_of(drained(opened(source, directory)))
    content = file.read_bytes()
    seed = random.randrange(1 << 32)
    print("seed", seed)
    draw = random.Random(seed)
    file.write_bytes(b"")
    reader, found, at = opened(source, directory), [], 0
    while at < len(content):
        more = draw.choice((1, 2, 3, 17, 200))
        with file.open("ab") as growing:
            growing.write(content[at : at + more])
        at += more
        if draw.random() < 0.5:
            polled = reader.poll()
            assert not [each.problem for each in polled if each.problem]
            found += rows_of(polled)
        if draw.random() < 0.1:
            reader = opened(source, directory, json.loads(json.dumps(reader.state)))
    found += rows_of(drained(reader))
    assert losses(found) == losses(everything)
    assert by_step(found) == by_step(everything)


@each_file
def test_a_truncated_tail_is_waited_for_at_every_length(source: Source, copy) -> None:
    directory = copy(source)
    file = the_file(source, directory)
    everything = losses(rows_of(drained(opened(source, directory))))
    content = file.read_bytes()
    step = max(1, len(content) // 40)
    for length in [*range(0, len(content), step), len(content) - 1]:
        file.write_bytes(content[:length])
        reader = opened(source, directory)
        before = rows_of(drained(reader))
        assert losses(before).items() <= everything.items()
        with file.open("ab") as growing:
            growing.write(content[length:])
        after = rows_of(drained(reader))
        assert losses(before + after) == everything
        assert len([row for row in before + after if "train/loss" in row]) == len(everything)


@each_file
def test_a_replaced_file_is_a_new_part(source: Source, copy) -> None:
    directory = copy(source)
    file = the_file(source, directory)
    reader = opened(source, directory)
    first = drained(reader)
    content = file.read_bytes()
    (directory / "other").write_bytes(content)
    os.replace(directory / "other", file)
    second = drained(reader)
    assert {each.part for each in first} == {1}
    assert {each.part for each in second} == {2}
    assert rows_of(second) == rows_of(first)
    os.truncate(file, 0)
    assert reader.poll() == []
    file.write_bytes(content)
    third = drained(reader)
    assert {each.part for each in third} == {3}
    assert rows_of(third) == rows_of(first)


@each_file
def test_a_file_of_a_new_attempt_is_read_after_the_first(source: Source, copy) -> None:
    directory = copy(source)
    file = the_file(source, directory)
    reader = opened(source, directory)
    first = drained(reader)
    (directory / "again").mkdir()
    shutil.copy(file, directory / "again" / file.name)
    again = open_reader(
        source.reader,
        str(directory),
        f"**/{file.name}",
        first_step=source.first_step,
        state=reader.state,
        **source.options,
    )
    second = drained(again)
    assert {each.part for each in second} == {2}
    assert rows_of(second) == rows_of(first)
    assert drained(again) == []


def test_csv_rewritten_with_a_column_gives_no_row_twice(tmp_path: Path) -> None:
    file = tmp_path / "metrics.csv"
    file.write_text("step,train_loss\n0,2.0\n1,1.5\n")
    reader = open_reader("csv", str(tmp_path))
    first = drained(reader)
    assert losses(rows_of(first)) == {0: 2.0, 1: 1.5}
    file.write_text("step,train_loss,val_loss\n0,2.0,\n1,1.5,\n")  # the same file, in place
    assert drained(reader) == []
    with file.open("a") as growing:
        growing.write("1,,1.75\n2,1.25,\n")
    second = drained(reader)
    assert {each.part for each in second} == {1}
    assert rows_of(second) == [{"global_step": 1, "eval/loss": 1.75}, {"global_step": 2, "train/loss": 1.25}]
    file.write_text("step,loss\n0,9.0\n")  # another run
    third = drained(reader)
    assert [(each.part, each.rows) for each in third] == [(2, [{"global_step": 0, "train/loss": 9.0}])]


def test_trainer_state_of_an_older_checkpoint_is_a_new_part(tmp_path: Path) -> None:
    def write(step: int, history: list[tuple[int, float]]) -> None:
        path = tmp_path / f"checkpoint-{step}"
        path.mkdir(exist_ok=True)
        entries = [{"step": number, "loss": loss} for number, loss in history]
        (path / "trainer_state.json").write_text(json.dumps({"global_step": step, "log_history": entries}))

    reader = open_reader("trainer_state", str(tmp_path), first_step=1)
    assert reader.poll() == []
    write(1, [(1, 3.0)])
    assert losses(rows_of(reader.poll())) == {0: 3.0}
    assert reader.poll() == []
    write(3, [(1, 3.0), (2, 2.0), (3, 1.0)])
    (more,) = reader.poll()
    assert (more.part, losses(more.rows)) == (1, {1: 2.0, 2: 1.0})
    reader = open_reader("trainer_state", str(tmp_path), first_step=1, state=json.loads(json.dumps(reader.state)))
    assert reader.poll() == []
    write(3, [(1, 3.0), (2, 2.5), (3, 1.5)])
    (other,) = reader.poll()
    assert (other.part, losses(other.rows)) == (2, {0: 3.0, 1: 2.5, 2: 1.5})
    (tmp_path / "checkpoint-4").mkdir()
    (tmp_path / "checkpoint-4" / "trainer_state.json").write_text('{"log_history": [')
    (waiting,) = reader.poll()
    assert "not JSON" in waiting.problem
    assert waiting.rows == []


def test_trackio_is_read_while_its_database_is_being_written(tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "live.db")) as writer:
        writer.execute("PRAGMA journal_mode=WAL")
        writer.execute(
            "CREATE TABLE metrics (id INTEGER PRIMARY KEY AUTOINCREMENT, timestamp TEXT, run_name TEXT, step INTEGER, "
            "metrics TEXT)"
        )
        reader = open_reader("trackio", str(tmp_path))
        for step in range(3):
            writer.execute(
                "INSERT INTO metrics (timestamp, run_name, step, metrics) VALUES ('', 'a', ?, ?)",
                (step, json.dumps({"loss": 2.0})),
            )
            assert rows_of(reader.poll()) == []  # not committed
            writer.commit()
            assert losses(rows_of(reader.poll())) == {step: 2.0}


def test_trackio_reads_each_run_as_a_part_of_its_own(copy) -> None:
    directory = copy(SOURCES["trackio"])
    reader = opened(SOURCES["trackio"], directory)
    assert len(rows_of(drained(reader))) == 6
    (database,) = directory.glob("*.db")
    with sqlite3.connect(database) as writer:
        for step in (7, 8):
            writer.execute(
                "INSERT INTO metrics (run_id, timestamp, run_name, step, metrics) VALUES (?, ?, ?, ?, ?)",
                ("other", "2026-01-01T00:00:00+00:00", "second", step, json.dumps({"loss": step, "text": "x"})),
            )
    writer.close()
    (part,) = drained(reader)
    assert part.part == 2
    row = {"time": 1767225600.0, "counted": "_step"}  # trackio counts the rows of a process itself
    assert part.rows == [{"global_step": step - 1, "train/loss": float(step), **row} for step in (7, 8)]


def test_a_log_that_is_rotated_is_read_once(tmp_path: Path) -> None:
    """Its rows of before the start were read again under the new name, and counted as the trainer's own."""
    log = tmp_path / "metrics.jsonl"

    def write(*steps: int) -> None:
        with log.open("a") as file:
            file.writelines(json.dumps({"step": step, "loss": 1.0}) + "\n" for step in steps)

    def read() -> list[int]:
        found = [row["global_step"] for _ in range(3) for part in reader.poll() for row in part.rows]
        assert len(found) == len(set(found))
        return found

    reader = open_reader("jsonl", str(tmp_path), "metrics.jsonl*")
    write(0, 1)
    assert read() == [0, 1]
    for first in (2, 5, 8):
        write(first)
        for number in (2, 1):  # as logging.handlers.RotatingFileHandler does
            older = log.with_name(f"metrics.jsonl.{number}")
            if older.exists():
                older.rename(log.with_name(f"metrics.jsonl.{number + 1}"))
        log.rename(log.with_name("metrics.jsonl.1"))
        if first != 5:  # a moment without a file
            write(first + 1, first + 2)
        else:
            assert read() == [first]
            write(first + 1, first + 2)
        assert sorted(read()) == ([first, first + 1, first + 2] if first != 5 else [first + 1, first + 2])
    log.with_name("metrics.jsonl.same").hardlink_to(log)
    for _ in range(3):
        reader.poll()
    assert reader.poll() == [], "each name of a file is read once"
    log.with_name("metrics.jsonl.same").unlink()
    log.unlink()
    write(20)  # a new file may get the number of one that was deleted
    assert read() == [20]
