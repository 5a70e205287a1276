"""Readers of other trainers' metrics, on damaged and hostile files."""

from __future__ import annotations

import json
import os
import random
import struct
from pathlib import Path
from typing import Any

import pytest

from midstream_core.crc32c import masked
from midstream_host.driver.metrics import file_reader
from midstream_host.driver.metrics.metrics_reader import READERS, open_reader
from midstream_host.driver.metrics.rows import RowsOfPart
from midstream_host.formats import framed_records
from support.trainers.metric_sources import (
    SOURCES,
    TRAINERS,
    Source,
    copy,
    drained,
    each_file,
    losses,
    opened,
    rows_of,
    the_file,
)

__all__ = ["copy"]


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


LINES = {
    "jsonl": ("", '{{"step": {0}, "loss": {0}}}\n'),
    "csv": ("step,loss\n", "{0},{0}\n"),
    "regex": ("", "step {0} loss {0}\n"),
}


@pytest.mark.parametrize("size", [3 << 19, 20 << 20])
@pytest.mark.parametrize("name", LINES)
def test_a_line_that_is_too_long_is_passed_over_with_a_message(name: str, size: int, tmp_path: Path) -> None:
    """Above 1 MiB its values were lost without a word, above 16 MiB the reader read nothing more for good."""
    header, line = LINES[name]
    path = tmp_path / f"metrics.{'log' if name == 'regex' else name}"
    path.write_text(header + line.format(1) + "x" * size)  # it is being written
    expression = r"step (?P<step>\d+) loss (?P<loss>\d+)"
    reader = open_reader(name, str(tmp_path), expression=expression)
    parts = [part for _ in range(8) for part in reader.poll()]
    with path.open("a") as file:
        file.write("x step 5 loss 5\n" + line.format(2))
    state = json.loads(json.dumps(reader.state))
    parts += drained(open_reader(name, str(tmp_path), expression=expression, state=state))
    assert losses(rows_of(parts)) == {1: 1.0, 2: 2.0}
    assert [each.problem for each in parts if "passed over" in each.problem]
    assert {each.part for each in parts} == {1}


def test_texts_of_a_progress_bar_are_read_before_its_line_ends(tmp_path: Path) -> None:
    """A bar overwrites its line with carriage returns for as long as the run trains."""
    path = tmp_path / "train.log"
    reader = open_reader("regex", str(tmp_path), expression=r"(?P<step>\d+)/\d+ .*loss=(?P<loss>[\d.]+)")
    with path.open("wb", buffering=0) as file:
        file.write(b"epoch 0\r\n")
        for step in range(3):
            file.write(f"\r{step}/900 [..] loss={step}.5".encode())
        assert losses(rows_of(drained(reader))) == {0: 0.5, 1: 1.5}  # the last text may be half
        file.write(b"0")  # a text that was half
        for step in range(3, 20_000):  # more than a line's limit without an end of line
            file.write(f"\r{step}/900 [{'=' * 60}] loss={step}.5".encode())
        file.write(b"\n")
    assert losses(rows_of(drained(reader))) == {step: step + 0.5 for step in range(2, 20_000)}


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
