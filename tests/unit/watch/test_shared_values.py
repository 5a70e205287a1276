"""Equal values of JSON lines, stored once."""

from __future__ import annotations

import json

import pytest

from midstream.watch import shared_values
from midstream.watch.shared_values import SharedValues

LINE = {"run": "one", "status": {"devices": [{"kind": "H100", "memory": 1 << 40}] * 2, "heartbeat": 1.5, "flag": True}}


def line(**changes: object) -> dict[str, object]:
    """The line as a host sends it: no part of it is shared with another one."""
    return {**json.loads(json.dumps(LINE)), **changes}


def test_equal_parts_become_one_object() -> None:
    shared = SharedValues()
    first, second = shared.share(line()), shared.share(line(run="two"))
    assert (first, second) == (LINE, {**LINE, "run": "two"})
    assert first["status"]["devices"] is second["status"]["devices"]
    assert first["status"]["devices"][0] is first["status"]["devices"][1]
    assert next(iter(first)) is next(iter(second))


def test_values_with_times_are_not_remembered() -> None:
    shared = SharedValues()
    first = shared.share(line())
    assert shared.share(line())["status"] is not first["status"]


@pytest.mark.parametrize("values", [([1], [True]), ([1], [1.0]), ([0, ""], [False, ""]), ({"a": 1}, {"a": True})])
def test_equal_values_of_other_types_stay_apart(values: tuple[object, object]) -> None:
    shared = SharedValues()
    assert [json.dumps(shared.share(value)) for value in values] == [json.dumps(value) for value in values]


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_values, "REMEMBERED", 10_000)
    shared = SharedValues()
    for number in range(1000):
        assert shared.share([f"value {number}"]) == [f"value {number}"]
        assert len(shared._known) < 200
    long = "x" * (shared_values.LONGEST + 1)
    shared.share([long])
    assert long not in shared._known
