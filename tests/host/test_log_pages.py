"""Pages and searches of a log on its host."""

from __future__ import annotations

from pathlib import Path

import pytest

from midstream_core import records
from midstream_host.runs import log_pages

TEXT = "first\nzweite größer\n\x1b[31mred\x1b[0m Third\n10%\r20% done\nwithout an end"
DATA = TEXT.encode()


@pytest.fixture
def log(tmp_path: Path) -> str:
    (tmp_path / "log").write_bytes(DATA)
    return str(tmp_path / "log")


def test_pages_of_any_size_are_complete_lines_and_join(log: str) -> None:
    lines = DATA.splitlines(keepends=True)
    begins = [sum(map(len, lines[:number])) for number in range(len(lines) + 1)]
    for size in (20, 25, 40, 1000):
        end, found = len(DATA), b""
        while end:
            page = log_pages.page(log, max(0, end - size), end)
            assert page.end == end
            assert page.begin in begins
            assert page.size == len(DATA)
            found, end = page.text.encode() + found, page.begin
        assert found == DATA
        begin, found = 0, b""
        while begin < len(DATA):
            page = log_pages.page(log, begin, begin + size)
            assert page.begin == begin
            assert page.end in begins
            found, begin = found + page.text.encode(), page.end
        assert found == DATA


def test_a_line_longer_than_a_page_is_given_in_parts(log: str) -> None:
    assert log_pages.page(log, 2, 4).text == "rs"
    assert log_pages.page(log, 8, 10).text == "ei"


def test_page_counts_from_the_end_and_ends_with_the_file(log: str) -> None:
    page = log_pages.page(log, -20, 1 << 62)
    assert (page.text, page.end) == ("without an end", len(DATA))
    assert log_pages.page(log, -(1 << 40), 1 << 62).begin == 0
    assert log_pages.page(log, 1 << 40, 1 << 62).text == ""


@pytest.mark.parametrize(
    ("words", "excluded", "ignore_case", "count", "before", "after"),
    [
        (["third"], [], True, 1, None, DATA.index(b"\x1b")),
        (["third"], [], False, 0, None, None),
        (["red Third"], [], False, 1, None, DATA.index(b"\x1b")),
        (["größer"], [], True, 1, 6, None),
        (["10%"], [], True, 0, None, None),
        (["third|größer"], [], True, 2, 6, DATA.index(b"\x1b")),
        (["|"], [], True, 0, None, None),
        (["d"], ["done", "without"], True, 1, None, DATA.index(b"\x1b")),
        ([], ["zzz"], False, 5, 6, DATA.index(b"\x1b")),
    ],
)
def test_search_counts_lines_as_they_are_displayed(
    log: str, words: list[str], excluded: list[str], ignore_case: bool, count: int, before: int, after: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for block in (30, 1 << 20):
        monkeypatch.setattr(log_pages, "BLOCK", block)
        found = log_pages.search(log, words, excluded, ignore_case, 10)
        assert (found.count, found.before, found.after) == (count, before, after)
        assert found.searched == found.size == len(DATA)


def test_search_without_time_says_how_much_it_has_searched(log: str) -> None:
    found = log_pages.search(log, ["first"], [], False, 0, seconds=0.0)
    assert (found.count, found.searched, found.size) == (0, 0, len(DATA))


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    with pytest.raises(records.DamagedRecordError):
        log_pages.page(str(tmp_path), 0, 10)
    with pytest.raises(records.DamagedRecordError):
        log_pages.search("/dev/zero", ["a"], [], False, 0)
