"""The page of a run's report: what it shows, and that nothing in it is executed or loaded."""

from __future__ import annotations

from dataclasses import replace

import pytest

from midstream.migrate.journal.downtime_report import DowntimeReport
from midstream.report.html import MAX_ROWS, table
from midstream.report.page import page, utc
from midstream.report.run_report import RunReport
from midstream_core import records
from support.html_page import HtmlPage
from support.reports import hostile, report
from support.tui import fleets

HOSTILE = (
    "</title></table></svg><script>alert(1)</script><img src=http://evil.example/x onerror=alert(2)>\x1b[31m\u202e&\"'"
)


def test_a_report_has_its_sections_and_loads_nothing() -> None:
    text = page(report())
    found = HtmlPage(text)
    assert found.problems == []
    assert found.ids == ["curves", "lineage", "migrations", "cost", "config", "not-known"]
    assert found.tags.count("svg") >= 2, "the curve, and the one at the seam"
    assert "polyline" in found.tags
    for words in (
        "nano",
        "certified",
        "root digest",
        "Downtime",
        "24.50",
        "optimizer.learning_rate",
        "connection refused",
    ):
        assert words in found.text, words


def test_texts_of_hosts_stay_texts() -> None:
    text = page(hostile(report(), HOSTILE))
    assert HtmlPage(text).problems == []
    assert "<script" not in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert text.count("&lt;script&gt;") > 10


def test_a_run_without_anything_has_a_report() -> None:
    bare = replace(fleets.run(), lineage=None, curve=(), checkpoints=(), status=None, fence=None)
    found = HtmlPage(page(RunReport(bare, fleets.NOW)))
    assert found.problems == []
    for words in ("no values of train/loss yet", "none written yet", "not known whether it", "It could not be read."):
        assert words in found.text, words


@pytest.mark.parametrize(
    ("migration", "words"), [("", "It was never migrated."), ("m-1", "It was migrated, from another machine")]
)
def test_a_journal_that_is_not_here_is_no_missing_migration(migration: str, words: str) -> None:
    """A report on another machine said that a run of two attempts was never migrated."""
    run = fleets.moved_run()
    assert run.lineage is not None
    attempts = [{**entry, "migration": migration} for entry in run.lineage.attempts]
    moved = replace(run, lineage=records.Lineage(run.run_id, attempts))
    assert words in HtmlPage(page(RunReport(moved, fleets.NOW))).text


@pytest.mark.parametrize("value", [1e300, -1e300, float("nan"), float("inf"), None, 0.0])
def test_a_time_of_no_calendar_is_a_dash(value: float | None) -> None:
    assert utc(value) == "-"


def test_a_long_table_names_how_many_rows_are_left_out() -> None:
    found = HtmlPage(table(("a",), [("x",)] * (MAX_ROWS + 7)))
    assert found.problems == []
    assert found.tags.count("tr") == MAX_ROWS + 1
    assert "7 rows more" in found.text


def test_downtime_that_was_not_measured_is_no_zero() -> None:
    value = report()
    view = replace(value.migrations[0], downtime=DowntimeReport({"copy": 1.0}, {}))
    assert "The downtime was not measured." in HtmlPage(page(replace(value, migrations=(view,)))).text
