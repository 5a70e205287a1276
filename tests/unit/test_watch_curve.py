"""The curve that grows row by row is the curve that `records.splice` makes."""

from __future__ import annotations

import time
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from midstream.watch.loss_curve import Curve
from midstream_engine import records


def lineage(epochs: dict[int, int]) -> records.Lineage:
    chain = records.Lineage("run")
    for attempt, epoch in epochs.items():
        chain = chain.with_entry(records.LineageEntry(attempt, epoch, "here", 1, "cpu", 0))
    return chain


steps = st.integers(0, 12)
rows = st.one_of(
    st.builds(lambda step, loss: {"global_step": step, "train/loss": loss, "time": loss}, steps, st.floats(0, 9)),
    st.builds(lambda step, loss: {"global_step": step, "eval/loss": loss, "time": loss}, steps, st.floats(0, 9)),
    st.just({"note": "no step"}),
)
fences = st.one_of(
    st.none(),
    st.builds(
        lambda epoch, sealed: records.Fence(
            epoch, "here", sealed[-1] if epoch > 1 else None,
            [{"epoch": number + 1, "step": sealed[number]} for number in range(epoch - 1)],
        ),
        st.integers(1, 3),
        st.lists(steps, min_size=3, max_size=3),
    ),
)  # fmt: skip
events = st.one_of(
    st.tuples(st.just("extend"), st.integers(1, 3), st.lists(rows, max_size=6)),
    st.tuples(st.just("restart"), st.integers(1, 3)),
    st.tuples(st.just("govern"), st.dictionaries(st.integers(1, 3), st.integers(1, 3)), fences),
)


@settings(max_examples=400, deadline=None, print_blob=True)
@given(st.lists(events, max_size=10))
def test_any_order_of_events_gives_the_splice_and_keeps_what_was_given_out(happened: list[tuple[Any, ...]]):
    curve = Curve()
    known: dict[int, list[Any]] = {}
    chain, fence = records.Lineage("run"), None
    given_out = []
    for event, *words in happened:
        if event == "extend":
            known.setdefault(words[0], []).extend(words[1])
            curve.extend(words[0], words[1])
        elif event == "restart":
            known.pop(words[0], None)
            curve.restart(words[0])
        else:
            chain, fence = lineage(words[0]), words[1]
            curve.govern(chain, fence)
        now = curve.rows()
        assert list(now) == records.splice(known, chain, fence)
        given_out.append((now, list(now)))
    for view, copy in given_out:
        assert list(view) == copy
        assert len(view) == len(copy)


def test_a_view_reads_like_a_list():
    curve = Curve()
    curve.extend(1, [{"global_step": step, "train/loss": 0.0} for step in range(5)])
    view = curve.rows()
    curve.extend(1, [{"global_step": 5, "train/loss": 0.0}])
    assert len(view) == 5
    assert view[-1]["global_step"] == 4
    assert [row["global_step"] for row in view[3:]] == [3, 4]
    assert [row["global_step"] for row in reversed(view)] == [4, 3, 2, 1, 0]
    assert view != curve.rows()
    assert view == list(view)


def test_appending_to_a_long_curve_costs_no_more_than_to_a_short_one():
    curve = Curve()
    curve.extend(1, [{"global_step": step, "train/loss": 0.0} for step in range(300_000)])

    def seconds(count: int) -> float:
        began = time.perf_counter()
        for step in range(count):
            curve.extend(1, [{"global_step": 300_000 + step, "train/loss": 0.0}])
            curve.rows()
        return time.perf_counter() - began

    # A splice of 300,000 rows takes about 0.2 s: 200 of them 40 s.
    assert seconds(200) < 2.0


@settings(max_examples=100, deadline=None, print_blob=True)
@given(st.lists(st.tuples(st.integers(1, 3), st.lists(rows, max_size=6)), max_size=8))
def test_a_column_is_what_the_rows_hold(happened: list[tuple[int, list[Any]]]):
    curve = Curve()
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


def test_values_of_every_kind_read_back_as_they_were():
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
    curve = Curve()
    curve.extend(1, [first, second])
    one, other = curve.rows()
    assert one == {**first, "attempt": 1}
    assert other == {**second, "attempt": 1}
    assert [type(one[name]) for name in ("n", "yes", "train/loss")] == [int, bool, float]


def test_a_view_knows_what_it_continues():
    curve = Curve()
    curve.extend(1, [{"global_step": step, "train/loss": 0.0} for step in range(5)])
    before = curve.rows()
    curve.extend(1, [{"global_step": 5, "train/loss": 0.0}])
    grown = curve.rows()
    assert grown.continues(before)
    curve.extend(2, [{"global_step": 3, "train/loss": 1.0}])
    assert not curve.rows().continues(grown)
