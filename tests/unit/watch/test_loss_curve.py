"""The incremental loss curve equals the splice of all rows."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midstream.listing import run_facts
from midstream.watch import loss_curve
from midstream.watch.loss_curve import LossCurve
from midstream.watch.metric_columns import MetricColumns
from midstream.watch.snapshot import RunView
from midstream_core import records
from support.migrations.spliced_rows import splice


def lineage(epochs: dict[int, int]) -> records.Lineage:
    chain = records.Lineage("run")
    for attempt, epoch in epochs.items():
        chain = chain.with_entry(records.LineageEntry(attempt, epoch, "here", 1, "cpu", 0))
    return chain


steps = st.integers(0, 12)
rows = st.one_of(
    st.builds(lambda step, loss: {"global_step": step, "train/loss": loss, "time": loss}, steps, st.floats(0, 9)),
    st.builds(lambda step, loss: {"global_step": step, "eval/loss": loss, "time": loss}, steps, st.floats(0, 9)),
    st.builds(
        lambda step, loss, start: {"global_step": step, "train/loss": loss, "start_number": start},
        steps,
        st.floats(0, 9),
        st.one_of(st.integers(-1, 3), st.just("2")),
    ),
    st.just({"note": "no step"}),
)
fences = st.one_of(
    st.none(),
    st.builds(
        lambda epoch, sealed, closed: records.Fence(
            epoch, "here", sealed[-1] if epoch > 1 else None,
            [{"epoch": number + 1, "step": sealed[number]} for number in range(epoch - 1)],
            sum(each[0] == epoch for each in closed),
            [{"epoch": each[0], "start": number, "step": each[1]} for number, each in enumerate(closed)],
        ),
        st.integers(1, 3),
        st.lists(steps, min_size=3, max_size=3),
        st.dictionaries(st.integers(1, 3), st.one_of(st.none(), steps), max_size=3).map(dict[int, int | None].items),
    ),
)  # fmt: skip
events = st.one_of(
    st.tuples(st.just("extend"), st.integers(1, 3), st.lists(rows, max_size=6)),
    st.tuples(st.just("restart"), st.integers(1, 3)),
    st.tuples(st.just("govern"), st.dictionaries(st.integers(1, 3), st.integers(1, 3)), fences),
)


@settings(max_examples=400, deadline=None, print_blob=True)
@given(st.lists(events, max_size=10))
def test_any_event_order_equals_splice_and_keeps_views(happened: list[tuple[Any, ...]]) -> None:
    curve = LossCurve()
    known: dict[int, list[Any]] = {}
    chain, fence = records.Lineage("run"), None
    views = []
    for event, *arguments in happened:
        if event == "extend":
            known.setdefault(arguments[0], []).extend(arguments[1])
            curve.extend(arguments[0], arguments[1])
        elif event == "restart":
            known.pop(arguments[0], None)
            curve.restart(arguments[0])
        else:
            chain, fence = lineage(arguments[0]), arguments[1]
            curve.set_records(chain, fence)
        now = curve.rows()
        assert list(now) == splice(known, chain, fence)
        views.append((now, list(now)))
    for view, copy in views:
        assert list(view) == copy
        assert len(view) == len(copy)


def test_view_reads_like_a_list() -> None:
    curve = LossCurve()
    curve.extend(1, [{"global_step": step, "train/loss": 0.0} for step in range(5)])
    view = curve.rows()
    curve.extend(1, [{"global_step": 5, "train/loss": 0.0}])
    assert len(view) == 5
    assert view[-1]["global_step"] == 4
    assert [row["global_step"] for row in view[3:]] == [3, 4]
    assert [row["global_step"] for row in reversed(view)] == [4, 3, 2, 1, 0]
    assert view != curve.rows()
    assert view == list(view)


def test_appending_reads_new_rows_alone_and_copies_none(monkeypatch: pytest.MonkeyPatch) -> None:
    curve = LossCurve()
    curve.extend(1, [{"global_step": step, "train/loss": 0.0} for step in range(3000)])
    read: list[int] = []
    value = MetricColumns.value

    def counted(columns: MetricColumns, index: int, name: str) -> object:
        read.append(index)
        return value(columns, index, name)

    monkeypatch.setattr(MetricColumns, "value", counted)
    for step in range(3000, 3200):
        before = curve.rows()
        curve.extend(1, [{"global_step": step, "train/loss": 0.0}])
        assert curve.rows().continues(before)
    assert read == list(range(3000, 3200))
    curve.restart(2)
    assert len(read) == 200, "an attempt without rows changes nothing"
    curve.set_records(lineage({1: 1}), None)
    assert len(read) == 200 + 3200, "other records: all rows are read again"


@settings(max_examples=100, deadline=None, print_blob=True)
@given(st.lists(st.tuples(st.integers(1, 3), st.lists(rows, max_size=6)), max_size=8))
def test_columns_equal_the_rows(happened: list[tuple[int, list[Any]]]) -> None:
    curve = LossCurve()
    for attempt, more in happened:
        curve.extend(attempt, more)
    view = curve.rows()
    for name in ("train/loss", "eval/loss", "nonesuch"):
        values, there = view.numbers(name, 0, len(view))
        assert [bool(known) for known in there] == [name in row for row in view]
        assert [value for value, known in zip(values, there, strict=True) if known] == [
            row[name] for row in view if name in row
        ]
    assert list(view.steps(0, len(view))) == [row["global_step"] for row in view]
    assert [(row["attempt"]) for row in view] == [
        attempt for attempt, begin, end in view.stretches(0, len(view)) for _ in range(begin, end)
    ]


def test_values_of_every_type_read_back_unchanged() -> None:
    digest = "0f" * 32
    first = {
        "global_step": 0,
        "train/loss": 0.1,
        "n": 3,
        "big": 2**60,
        "none": None,
        "yes": True,
        "batch_digest": digest,
    }
    second = {"global_step": 1, "train/loss": float("inf"), "word": "x", "list": [1], "batch_digest": "F" * 64}
    curve = LossCurve()
    curve.extend(1, [first, second])
    one, other = curve.rows()
    assert one == {**first, "attempt": 1}
    assert other == {**second, "attempt": 1}
    assert [type(one[name]) for name in ("n", "yes", "train/loss")] == [int, bool, float]


def test_rows_of_an_earlier_version_count_by_their_epoch() -> None:
    """A job of the previous build was requeued under this one: its rows have no start."""
    curve = LossCurve()
    fence = records.first_fence("here").started(None).started(4)
    curve.extend(1, [{"global_step": step, "train/loss": 0.0} for step in range(6)])
    curve.set_records(lineage({1: 1}), fence)
    assert [row["global_step"] for row in curve.rows()] == [0, 1, 2, 3, 4, 5]
    curve.extend(1, [{"global_step": 4, "train/loss": 2.0, "start_number": 2}])
    curve.extend(1, [{"global_step": step, "train/loss": 1.0, "start_number": 1} for step in range(7)])
    assert [row["train/loss"] for row in curve.rows()] == [1.0, 1.0, 1.0, 1.0, 2.0, 0.0]
    curve.set_records(lineage({1: 1}), fence.started(5))
    curve.extend(1, [{"global_step": 5, "train/loss": 3.0, "start_number": 2}])
    assert curve.rows()[-1]["train/loss"] == 0.0, "step-6 is past the end of start 2"


def test_view_continues_an_earlier_view() -> None:
    curve = LossCurve()
    curve.extend(1, [{"global_step": step, "train/loss": 0.0} for step in range(5)])
    before = curve.rows()
    curve.extend(1, [{"global_step": 5, "train/loss": 0.0}])
    grown = curve.rows()
    assert grown.continues(before)
    curve.extend(2, [{"global_step": 3, "train/loss": 1.0}])
    assert not curve.rows().continues(grown)


def test_column_is_read_while_the_feed_adds_rows() -> None:
    def of_step(step: int) -> list[dict[str, Any]]:
        return [{"global_step": step, "train/loss": 2.0 + step}, {"global_step": step, "eval/loss": 3.0 + step}]

    class Interrupted(dict[str, Any]):
        """A row of two lines; as it is read, the host's feed adds another one."""

        def __contains__(self, name: object) -> bool:
            loss.extend(1, of_step(1))
            return super().__contains__(name)

    loss = LossCurve()
    loss.extend(1, of_step(0))
    curve = loss.rows()
    curve._splice.merged[0] = Interrupted(curve._splice.merged[0])
    assert list(curve.numbers("eval/loss", 0, 1)[0]) == [3.0]
    assert len(loss.rows()) == 2


@pytest.mark.parametrize("order", ["descending", "shuffled"])
def test_rows_in_no_order_are_spliced_once(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inserted: list[int] = []
    insert = loss_curve._Splice.insert

    def counted(self: Any, position: int, *arguments: int) -> None:
        inserted.append(position)
        insert(self, position, *arguments)

    monkeypatch.setattr(loss_curve._Splice, "insert", counted)
    steps = list(range(2000))[::-1]
    if order == "shuffled":
        random.Random(3).shuffle(steps)
    rows = [{"global_step": step, "train/loss": float(step)} for step in steps]
    curve = LossCurve()
    curve.extend(1, [{"global_step": 5, "train/loss": 9.0}])
    before = curve.rows()
    curve.extend(2, rows)
    assert list(curve.rows()) == splice(
        {1: [{"global_step": 5, "train/loss": 9.0}], 2: rows}, records.Lineage("r"), None
    )
    assert len(inserted) <= loss_curve.MAX_INSERTED, "each insertion takes the time of all rows after it"
    assert list(before) == [{"global_step": 5, "train/loss": 9.0, "attempt": 1}]


def test_column_has_its_length_while_a_value_is_added() -> None:
    columns = MetricColumns()
    for step in range(100):
        columns.append({"global_step": step, **({"eval/loss": 1.0} if step < 10 else {})})
    assert isinstance(columns._columns, dict)
    column = columns._columns["eval/loss"]
    assert isinstance(column.kinds, bytearray)
    column.kinds += bytes(90) + b"\1"  # `put` of row 100, interrupted before its value is stored
    values, there = columns.numbers("eval/loss", 0, 100)
    assert (len(values), len(there)) == (100, 100)
    assert [bool(known) for known in there] == [step < 10 for step in range(100)]


def test_absent_metric_is_found_out_without_reading_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    curve = LossCurve()
    curve.extend(1, [{"global_step": step, "eval/loss": 1.0} for step in range(1000)])
    run = RunView("nano", "small", None, None, 1, None, True, curve=curve.rows())
    monkeypatch.setattr(MetricColumns, "row", lambda *_: pytest.fail("a row was read"))
    monkeypatch.setattr(MetricColumns, "has", lambda *_: pytest.fail("a row was read"))
    assert run_facts.loss(run) is None
    curve.extend(1, [{"global_step": 1000, "train/loss": 2.5}])
    monkeypatch.undo()
    assert run_facts.loss(replace(run, curve=curve.rows())) == 2.5


def test_rows_behind_the_last_that_counts_are_given_up() -> None:
    curve = LossCurve()
    curve.extend(1, [{"global_step": step, "train/loss": float(step)} for step in range(6)])
    assert list(curve.rows().given_up()) == []
    # The second attempt starts again from the checkpoint of step 3.
    curve.set_records(lineage({1: 1, 2: 2}), records.Fence(1, "a").sealed(2, "a", 3))
    curve.extend(2, [{"global_step": 3, "train/loss": 0.5}])
    rows = curve.rows()
    assert [row["train/loss"] for row in rows] == [0.0, 1.0, 2.0, 0.5]
    [(attempt, begin, stop)] = rows.given_up()
    steps, losses = rows.points_of(attempt, "train/loss", begin, stop)
    assert (attempt, list(steps), list(losses)) == (1, [3.0, 4.0, 5.0], [3.0, 4.0, 5.0])
    assert list(rows.points_of(attempt, "eval/loss", begin, stop)[0]) == []
