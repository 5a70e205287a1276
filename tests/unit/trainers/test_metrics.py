"""Readers of other trainers' metrics, on what the trainers and trackers wrote."""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import shutil
import sqlite3
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from midstream_engine.foreign.formats import framed_records
from midstream_engine.foreign.formats.crc32c import crc32c, masked
from midstream_engine.foreign.metrics import file_reader
from midstream_engine.foreign.metrics.metrics_reader import READERS, MetricsReader, open_reader
from midstream_engine.foreign.metrics.rows import Columns, Point, PointMerger, Row, RowsOfPart
from support.paths import FIXTURES

TRAINERS = FIXTURES / "trainers"
EXPRESSION = r"iter (?P<step>\d+): loss (?P<loss>\S+), lr (?P<learning_rate>\S+), time (?P<milliseconds>[\d.]+)ms"


class Source(NamedTuple):
    """Metrics that a trainer wrote: of steps 0 to ``rows`` - 1."""

    reader: str
    run: str
    pattern: str
    rows: int
    first_step: int
    options: Mapping[str, Any] = MappingProxyType({})


SOURCES = {
    "tensorboard": Source("tensorboard", "huggingface", "", 6, 1),
    "csv": Source("csv", "lightning", "", 6, 0),
    "trainer_state": Source("trainer_state", "huggingface", "", 6, 1),
    "jsonl": Source("jsonl", "accelerate", "metrics.jsonl", 4, 1),
    "wandb": Source("wandb", "wandb", "", 6, 1),
    "trackio": Source("trackio", "trackio", "", 6, 1),
    "regex": Source("regex", "script", "", 4, 0, {"expression": EXPRESSION}),
}
each_source = pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
FILES = [name for name in SOURCES if name not in ("trainer_state", "trackio")]
each_file = pytest.mark.parametrize("source", [SOURCES[name] for name in FILES], ids=FILES)


def opened(source: Source, directory: Path, state: Any = None) -> MetricsReader:
    return open_reader(
        source.reader, str(directory), source.pattern, first_step=source.first_step, state=state, **source.options
    )


def drained(reader: MetricsReader) -> list[RowsOfPart]:
    """Everything until two polls in a row find nothing."""
    found: list[RowsOfPart] = []
    quiet = 0
    while quiet < 2:
        polled = reader.poll()
        quiet = 0 if any(each.rows for each in polled) else quiet + 1
        found += polled
    return found


def rows_of(parts: list[RowsOfPart]) -> list[Row]:
    return [row for each in parts for row in each.rows]


def losses(rows: list[Row]) -> dict[int, float]:
    return {row["global_step"]: row["train/loss"] for row in rows if "train/loss" in row}


def by_step(rows: list[Row]) -> dict[int, Row]:
    """All values of each step, without their time: values that were read apart have times of their own."""
    found: dict[int, Row] = {}
    for row in rows:
        found.setdefault(row["global_step"], {}).update({name: row[name] for name in row if name != "time"})
    return found


def expected(source: Source) -> dict[int, float]:
    """Losses by step, read in another way than the readers do."""
    if source.run == "huggingface":
        history = json.loads((TRAINERS / "huggingface/checkpoint-6/trainer_state.json").read_text())["log_history"]
        return {each["step"] - 1: each["loss"] for each in history if "loss" in each}
    if source.run in ("wandb", "trackio"):
        return {step: 1 / (step + 1) for step in range(source.rows)}
    if source.run == "accelerate":
        lines = map(json.loads, (TRAINERS / "accelerate/metrics.jsonl").read_text().splitlines())
        return {each["step"] - 1: each["loss"] for each in lines}
    if source.run == "script":
        lines = [
            line.split() for line in (TRAINERS / "script/train.log").read_text().splitlines() if line[:4] == "iter"
        ]
        return {int(words[1].rstrip(":")): float(words[3].rstrip(",")) for words in lines}
    lines = [
        line.split(",")
        for line in (TRAINERS / "lightning/lightning_logs/version_0/metrics.csv").read_text().splitlines()
    ]
    step, loss = lines[0].index("step"), lines[0].index("train_loss")
    return {int(cells[step]): float(cells[loss]) for cells in lines[1:] if cells[loss]}


@pytest.fixture
def copy(tmp_path: Path) -> Callable[[Source], Path]:
    def make(source: Source) -> Path:
        shutil.copytree(TRAINERS / source.run, tmp_path / "run")
        for time, path in enumerate(sorted((tmp_path / "run").rglob("trainer_state.json"))):
            os.utime(path, (1e9 + time, 1e9 + time))  # as they were written
        return tmp_path / "run"

    return make


def the_file(source: Source, directory: Path) -> Path:
    (only,) = [each.source for each in opened(source, directory).poll()]
    return directory / only


# ------------------------------------------------------------------------------------------ what they read


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


# ------------------------------------------------------------------------ replaced, truncated, new files


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
    assert part.rows == [{"global_step": step - 1, "time": 1767225600.0, "train/loss": float(step)} for step in (7, 8)]


# ------------------------------------------------------------------------------------- damage and hostility


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_a_damaged_record_is_reported_and_waited_for(name: str, copy) -> None:
    source = SOURCES[name]
    directory = copy(source)
    file = the_file(source, directory)
    everything = losses(rows_of(drained(opened(source, directory))))
    content = bytearray(file.read_bytes())
    at = len(content) * 7 // 8  # the events of TensorBoard begin with a long text
    content[at] ^= 0xFF
    file.write_bytes(content)
    reader = opened(source, directory)
    parts = reader.poll() + reader.poll()
    assert 0 < len(losses(rows_of(parts))) < len(everything)
    assert {each.problem for each in parts if each.problem}
    assert all("at byte" in each.problem and "damaged" in each.problem for each in parts if each.problem)
    content[at] ^= 0xFF  # the page arrives late, as on a network's file system
    file.write_bytes(content)
    parts += drained(reader)
    assert losses(rows_of(parts)) == everything
    assert len([row for row in rows_of(parts) if "train/loss" in row]) == len(everything)


@each_file
def test_random_damage_never_raises_and_never_invents_rows(source: Source, copy) -> None:
    directory = copy(source)
    file = the_file(source, directory)
    content = file.read_bytes()
    seed = random.randrange(1 << 32)
    print("seed", seed)
    draw = random.Random(seed)
    for _ in range(60):
        damaged = bytearray(content)
        for _ in range(draw.choice((1, 4, 64))):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        file.write_bytes(damaged)
        for part in drained(opened(source, directory)):
            assert len(part.problem) < 500
            json.dumps(part.rows, allow_nan=False)
            for row in part.rows:
                assert 0 <= row["global_step"] < 1 << 53


def test_a_record_of_any_declared_size_is_bounded(tmp_path: Path) -> None:
    header = struct.pack("<Q", 1 << 60)
    (tmp_path / "events.out.tfevents.1").write_bytes(header + struct.pack("<I", masked(header)) + b"x" * 100)
    (part,) = open_reader("tensorboard", str(tmp_path)).poll()
    assert "at most" in part.problem


def test_scalars_after_a_large_record_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A film in the event file ended the curve; it is passed over in parts, also by another reader."""
    path = tmp_path / "events.out.tfevents.1"
    (source,) = (TRAINERS / "huggingface").rglob("events.out.tfevents.*")
    content = source.read_bytes()
    expected = losses(rows_of(drained(open_reader("tensorboard", str(source.parent), first_step=1))))
    film = b"x" * 70_000
    header = struct.pack("<Q", len(film))
    large = header + struct.pack("<I", masked(header)) + film + struct.pack("<I", masked(film))
    monkeypatch.setattr(framed_records, "RECORD_LIMIT", 60_000)
    monkeypatch.setattr(file_reader, "READ", 30_000)
    path.write_bytes(large[:50_000])  # it is being written
    reader = open_reader("tensorboard", str(tmp_path), first_step=1)
    for _ in range(3):
        reader.poll()
    path.write_bytes(large + content + large)
    reader = open_reader("tensorboard", str(tmp_path), first_step=1, state=json.loads(json.dumps(reader.state)))
    found: list[RowsOfPart] = []
    for _ in range(10):
        found += reader.poll()
    assert losses(rows_of(found)) == expected
    assert {each.part for each in found} == {1}


@pytest.mark.parametrize("name", ["jsonl", "csv"])
def test_a_line_without_an_end_is_bounded(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_reader, "READ", 1000)
    monkeypatch.setattr(file_reader, "LARGEST_READ", 4000)
    (tmp_path / f"metrics.{name}").write_bytes(b"x" * 5000)
    (part,) = open_reader(name, str(tmp_path)).poll()
    assert "more than 4000 bytes" in part.problem


def test_a_poll_reads_a_bounded_part_of_all_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        (tmp_path / f"{name}.jsonl").write_text("".join(f'{{"step": {step}, "loss": 1}}\n' for step in range(100)))
    monkeypatch.setattr(file_reader, "READ", 1000)
    monkeypatch.setattr(file_reader, "BUDGET", 1500)
    reader = open_reader("jsonl", str(tmp_path))
    assert len(reader.poll()) == 2
    parts = drained(reader)
    assert {each.part for each in parts} == {1, 2, 3}
    assert len(rows_of(parts)) > 200


def test_lines_that_are_no_rows_are_passed_over(tmp_path: Path) -> None:
    lines = [
        "[" * 100_000, "{}", '{"step": "x", "loss": 1}', '{"step": 1, "loss": "NaN"}', '{"step": 2, "loss": 1e999}',
        '{"step": -1, "loss": 1}', '{"step": 3.5, "loss": 1}', '{"step": 3, "loss": true, "lr": 2}', "null",
    ]  # fmt: skip
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n")
    rows = rows_of(drained(open_reader("jsonl", str(tmp_path))))
    assert rows == [
        {"global_step": 1, "train/loss": None},
        {"global_step": 2, "train/loss": None},
        {"global_step": 3, "optim/learning_rate": 2.0},
    ]


def test_a_file_that_is_no_database_or_no_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "a.db").write_bytes(b"SQLite format 3\0" + b"\xff" * 4000)
    (tmp_path / "b.db").write_text("text")
    (part,) = open_reader("trackio", str(tmp_path)).poll()
    assert "cannot be read" in part.problem
    os.mkfifo(tmp_path / "events.out.tfevents.2")
    (part,) = open_reader("tensorboard", str(tmp_path)).poll()
    assert "regular file" in part.problem


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    "state", [None, 3, [], {"files": 3, "parts": "x"}, {"files": {"a": {"part": -1}}}, {"last": []}]
)
def test_a_state_of_another_shape_begins_at_the_beginning(reader: str, state: Any, tmp_path: Path) -> None:
    assert open_reader(reader, str(tmp_path), expression="(?P<step>.)", state=state).poll() == []


@pytest.mark.parametrize(("name", "expression", "words"), [
    ("other", "", "no reader"), ("regex", "(", "is none"), ("regex", "loss", "no group"),
])  # fmt: skip
def test_an_unknown_reader_or_expression_is_refused(name: str, expression: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=words):
        open_reader(name, str(tmp_path), expression=expression)


# --------------------------------------------------------------------------------------------- columns


def test_names_that_the_user_gives_come_first() -> None:
    columns = Columns(
        1, {"loss": "my/ce", "learning_rate": "sched", "step": "n", "throughput/tokens_per_second": "tps"}
    )
    point = columns.point({"n": 5, "step": 99, "my/ce": 2.5, "loss": 7.0, "sched": 0.1, "tps": 1000, "when": "x"})
    assert point is not None
    row = columns.row(point)
    assert (row["global_step"], row["train/loss"], row["optim/learning_rate"]) == (4, 2.5, 0.1)
    assert row["throughput/tokens_per_second"] == 1000.0
    assert row["loss"] == 7.0


def test_rows_have_a_bounded_number_of_names_of_bounded_length() -> None:
    row = Columns().row(Point(0, None, {f"{number}" + "x" * 1000: 1.0 for number in range(1000)}))
    assert len(row) <= 257
    assert max(map(len, row)) <= 200


def test_values_of_one_step_are_merged_and_a_repeated_one_is_not() -> None:
    merger = PointMerger()
    assert merger.add(Point(1, None, {"lr": 0.1})) == []
    assert merger.add(Point(1, 5.0, {"loss": 2.0})) == []
    assert merger.add(Point(1, 6.0, {"loss": 3.0})) == [Point(1, 5.0, {"lr": 0.1, "loss": 2.0})]
    again = PointMerger(json.loads(json.dumps(merger.state)))
    assert again.flush() == [Point(1, 6.0, {"loss": 3.0})]
    assert again.flush() == []


def test_losses_that_are_not_finite_are_null() -> None:
    row = Columns().row(Point(0, None, {"loss": math.nan, "lr": math.inf}))
    assert (row["train/loss"], row["optim/learning_rate"]) == (None, None)


def test_crc32c_has_the_value_of_its_standard() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(b"6789", crc32c(b"12345")) == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA  # of RFC 3720, appendix B.4
