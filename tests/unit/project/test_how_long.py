"""The table of durations follows from the rates on the page of the benchmarks."""

from __future__ import annotations

import re
import statistics

from support.paths import REPOSITORY

SIZES = (1, 10, 100)  # GB
PAGE = (REPOSITORY / "docs/explanation/how-long.md").read_text()
COPIES = (REPOSITORY / "docs/benchmarks/copies.md").read_text()


def measured(row: str) -> float:
    """Return the median of the shares of a row."""
    found = re.search(rf"^\| {re.escape(row)} \| ([\d., ]+)", COPIES, re.MULTILINE)
    assert found, row
    return statistics.median(map(float, re.findall(r"0\.\d+", found[1])))


def seconds(gigabytes: int, gigabits: int) -> float:
    """Return the duration of a copy by the share of the link that was measured."""
    slow, *fast = (measured(row) for row in ("midstream, verified", "the same, `--mib 2048`"))
    share = slow if gigabits == 1 else fast_share_of_a_gigabyte() if gigabytes == 1 else fast[0]
    return gigabytes * 8 / gigabits / share


def fast_share_of_a_gigabyte() -> float:
    section = COPIES[COPIES.index("## Over a link of 10 Gbit/s") :]
    found = re.search(r"^\| midstream, verified \| ([\d., ]+)", section, re.MULTILINE)
    assert found
    return statistics.median(map(float, re.findall(r"0\.\d+", found[1])))


def shown(value: float) -> str:
    if value < 100:
        return f"{value:.1f} s" if value < 10 else f"{value:.0f} s"
    return f"{value / 60:.1f} min" if value < 600 else f"{value / 60:.0f} min"


def rows(mark: str) -> list[str]:
    section = PAGE[PAGE.index(f"<!-- computed: {mark}") :]
    return [line for line in section.split("\n\n")[1].splitlines() if re.match(r"\| \d", line)]


def test_durations_follow_from_the_measured_shares() -> None:
    assert rows("copies") == [
        f"| {size} GB | {shown(seconds(size, 1))} | {shown(seconds(size, 10))} |" for size in SIZES
    ]


def test_money_follows_from_the_durations() -> None:
    assert rows("money") == [
        f"| {size} GB | {seconds(size, 1) / 36:.2f} | {seconds(size, 10) / 36:.2f} |" for size in SIZES
    ]
