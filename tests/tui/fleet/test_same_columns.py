"""`--status` and the lists of the terminal UI: one name and one format for each column that both have."""

from __future__ import annotations

from typing import Any

import pytest

from midstream.headless import status
from midstream.tui.screens.fleet import table_rows
from midstream.tui.state.screen_state import ScreenState
from midstream.tui.style.glyphs import UNICODE
from support.tui import fleets, prepared_migrations

ALONE = {"", "OWNERSHIP", "CHECKPOINT"}  # columns of `--status` alone
DECORATED = {"LINK", "STATE", "ACCELERATORS", "AGE"}  # a sign, or another sign for x


@pytest.mark.parametrize("kind", ["hosts", "runs", "migrations"])
def test_columns_have_one_name_and_one_format(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: fleets.NOW)
    snapshot, views = fleets.small_fleet(), (prepared_migrations.certified(),)
    rows = {
        "hosts": lambda: status.host_rows(snapshot),
        "runs": lambda: status.run_rows(snapshot),
        "migrations": lambda: status.migration_rows(views),
    }[kind]()
    items: Any = {"hosts": snapshot.hosts, "runs": snapshot.runs, "migrations": views}[kind]
    listing, state = table_rows.LISTS[kind], ScreenState(snapshot, views, fleets.NOW)
    titles, (heading, *lines) = [column.title for column in listing.columns], rows
    assert set(heading) - ALONE <= set(titles)
    assert len(lines) > 0
    by_key = {listing.key(item): item for item in items}
    place = heading.index({"hosts": "HOST", "runs": "RUN", "migrations": "ID"}[kind])
    for line in lines:
        cells = listing.row(by_key[line[place]], listing.columns, state, UNICODE).cells
        shown = {title: cell[0] if isinstance(cell, tuple) else cell for title, cell in zip(titles, cells, strict=True)}
        for title, cell in zip(heading, line, strict=True):
            if title not in ALONE | DECORATED:
                assert shown[title] == cell, title
            elif title in DECORATED - {"ACCELERATORS"}:
                assert cell.split(" (")[0] in shown[title], title
