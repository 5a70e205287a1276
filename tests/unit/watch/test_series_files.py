"""The hosts' metrics in the state directory: what a later session begins with."""

from __future__ import annotations

import itertools
import json
import math
import os
import time
import zlib
from pathlib import Path

import pytest

from midstream.watch import series_files
from midstream.watch.series_files import SeriesFiles, directory_of, read, remove_old, write
from midstream.watch.system_series import DAY, TIERS, SystemSeries

NOW = 1_800_000_000.0
GPU = {"index": 3, "kind": "NVIDIA H100", "utilization": 0.5, "power": 300.0}


def filled(begin: float, seconds: int, cpu: float = 0.25, step: int = 5) -> SystemSeries:
    series = SystemSeries()
    for second in range(0, seconds, step):
        series.add(begin + second, {"cpu_used": cpu, "accelerators": [GPU]})
    return series


def points(series: SystemSeries) -> list[tuple[float, float]]:
    times, (cpu,) = series.read([("cpu", -1)])
    return list(zip(times, cpu, strict=True))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "system" / "fleet" / "lab"


def test_later_session_continues_the_curves(file: Path) -> None:
    before = filled(NOW, 6 * 3600)
    write(file, before.stored())
    stored = read(file)
    assert stored == before.stored()
    assert stored is not None
    again = filled(NOW + 7 * 3600, 300, cpu=0.75)
    version = again.version
    again.restore(stored, NOW + 7 * 3600 + 300)
    assert again.version > version, "views draw it"
    times = [at for at, _ in points(again)]
    assert times == sorted(set(times))
    known = [cpu for _, cpu in points(again) if not math.isnan(cpu)]
    assert [cpu for cpu, _ in itertools.groupby(known)] == [0.25, 0.75]
    gaps = [at for at, cpu in points(again) if math.isnan(cpu)]
    assert len(gaps) >= 1, "the hour without a session is no line"
    assert all(NOW + 6 * 3600 - 300 < at < NOW + 7 * 3600 for at in gaps)
    assert ("utilization", 3) in again.stored_keys()
    for second in range(300, 600, 5):
        again.add(NOW + 7 * 3600 + second, {"cpu_used": 0.5})
    assert points(again)[-1][1] == 0.5


def test_restored_series_stays_within_its_bounds() -> None:
    stored = filled(NOW, int(DAY), step=60).stored()
    again = filled(NOW + DAY, 3600)
    again.restore(stored, NOW + DAY + 3600)
    for tier, (resolution, capacity) in zip(again.stored(), TIERS, strict=True):
        assert len(tier.times) <= capacity * 9 // 8
        assert tier.times[0] >= NOW + DAY + 3600 - resolution * capacity * 9 / 8 - resolution
        assert all(len(column) == len(tier.times) for column in tier.columns.values())
    late = SystemSeries()
    late.restore(stored, NOW + 3 * DAY)
    assert points(late) == []


def test_times_of_another_clock_are_not_used() -> None:
    stored = filled(NOW, 600).stored()
    series = SystemSeries()
    series.restore(stored, NOW - DAY)
    assert points(series) == []
    stored[1].times.reverse()
    series.restore(stored, NOW + 600)
    assert points(series) == []


def test_partial_or_foreign_file_counts_as_absent(file: Path) -> None:
    assert read(file) is None
    write(file, filled(NOW, 3600).stored())
    complete = file.read_bytes()
    line, _, body = complete.partition(b"\n")
    head = json.loads(line)
    for size in (0, 10, len(line), len(line) + 1, len(complete) // 2, len(complete) - 1):
        file.write_bytes(complete[:size])
        assert read(file) is None, size
    flipped = bytearray(complete)
    flipped[-5] ^= 1
    changes = [
        bytes(flipped),
        b"[" * 100_000 + b"\n",
        b"7\n" + body,
        *(
            json.dumps({**head, **change}).encode() + b"\n" + body
            for change in (
                {"format": 2},
                {"byteorder": "other"},
                {"tiers": head["tiers"][:2]},
                {"tiers": [{"points": 10**9, "keys": []}] * 3},
                {"tiers": [{"points": -1, "keys": []}] * 3},
                {"tiers": [{"points": 1, "keys": [["cpu", 10**9]]}] * 3},
                {"tiers": [{"points": 1, "keys": [["\u001b[2J", -1]]}] * 3},
                {"tiers": [{"points": 700, "keys": [["cpu", -1]] * 99}] * 3},
            )
        ),
    ]
    for number, text in enumerate(changes):
        file.write_bytes(text)
        assert read(file) is None, number
    file.write_bytes(complete)
    assert read(file) is not None
    assert zlib.crc32(body) == head["crc32"]


def test_session_reads_files_at_start_and_writes_them_at_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIDSTREAM_STATE", str(tmp_path))
    now = time.time()
    system = {name: filled(now - 300, 300) for name in ("lab", "../../x", "other")}
    system["idle"] = SystemSeries()
    first = SeriesFiles("fleet.yaml", system)
    first.start()
    assert first.restored.wait(60)
    first.stop()
    names = sorted(file.name for file in directory_of("fleet.yaml").iterdir())
    assert names == ["..%2F..%2Fx", "lab", "other"], "nothing was reported of the host idle"
    assert directory_of("fleet.yaml") != directory_of("other.yaml")
    (directory_of("fleet.yaml") / "other").write_bytes(b"partial")
    later = {name: SystemSeries() for name in system}
    second = SeriesFiles("fleet.yaml", later)
    second.start()
    assert second.restored.wait(60)
    second.stop()
    assert points(later["lab"]) == points(system["lab"])
    assert points(later["other"]) == []


def test_session_that_ends_before_reading_the_files_keeps_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIDSTREAM_STATE", str(tmp_path))
    file = directory_of("fleet.yaml") / "lab"
    write(file, filled(time.time() - 3600, 1800).stored())
    before = file.read_bytes()
    files = SeriesFiles("fleet.yaml", {"lab": filled(time.time() - 60, 60)})
    files.stop()
    files.start()
    files._thread.join(60)
    assert not files.restored.is_set()
    assert file.read_bytes() == before


def test_full_disk_does_not_end_the_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "state").write_text("a file where the directory should be")
    monkeypatch.setenv("MIDSTREAM_STATE", str(tmp_path / "state"))
    warnings: list[str] = []
    monkeypatch.setattr(series_files._log, "warning", lambda text, error: warnings.append(text))
    files = SeriesFiles("fleet.yaml", {"lab": filled(NOW, 60)})
    files.start()
    assert files.restored.wait(60)
    files.stop()
    assert warnings == ["the hosts' metrics are not stored: %s"]


def test_files_of_earlier_days_are_removed(tmp_path: Path) -> None:
    for name in ("old/a", "old/b", "mixed/a", "mixed/b"):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text("x")
        age = 60 if name == "mixed/b" else DAY + 60
        os.utime(file, (NOW - age, NOW - age))
    remove_old(tmp_path, NOW)
    assert [str(path.relative_to(tmp_path)) for path in sorted(tmp_path.rglob("*"))] == ["mixed", "mixed/b"]


def test_file_of_a_day_with_many_accelerators_is_small(file: Path) -> None:
    series = SystemSeries()
    many = [{**GPU, "index": index} for index in range(8)]
    for second in range(0, int(DAY), 60):
        series.add(NOW + second, {"cpu_used": 0.5, "accelerators": many})
    write(file, series.stored())
    assert file.stat().st_size < series_files.LARGEST // 4
    assert read(file) is not None
