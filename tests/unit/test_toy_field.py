"""A field of runs is one line of a table: a toy shows that filters of both faces read it."""

from __future__ import annotations

import pytest

from midstream.headless.status import _condition
from midstream.listing import fleet_fields
from midstream.listing.field_type import Field
from midstream.listing.filter_error import FilterError
from midstream.listing.filter_parser import parse
from midstream.listing.filter_values import Kind
from midstream.listing.fleet_moment import FleetMoment
from midstream.tui.command_line import LISTS
from support.tui import fleets
from support.tui.fleets import NOW

FIELD = Field("letters", Kind.NUMBER, lambda run, _: len(run.run_id))


def test_unknown_field_is_an_error() -> None:
    with pytest.raises(FilterError):
        parse("letters>2", LISTS["runs"], NOW)


def test_field_is_filtered_by_in_both_faces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fleet_fields.RUNS, FIELD.name, FIELD)
    run = fleets.run()
    moment, size = FleetMoment(fleets.small_fleet(run), (), NOW), len(run.run_id)
    for text, holds in ((f"letters={size}", True), (f"letters>{size}", False)):
        headless = _condition(text)
        assert headless is not None
        assert headless.holds(run, moment) is holds
        assert parse(text, LISTS["runs"], NOW).holds(run, moment) is holds
