"""The pickle interpreter that both programs read files of torch with."""

from __future__ import annotations

import collections
import contextlib
import functools
import pickle
from pathlib import PurePosixPath

import pytest

from midstream_core import restricted_pickle
from midstream_core.restricted_pickle import Global, PickleError, Record, Vocabulary, load
from midstream_core.torch_archive import PlainValues

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_plain_values_are_read_in_every_protocol(protocol: int) -> None:
    value = {"a": [1, -2, 2**70, 1.5, True, None, "é"], 3: (4, (5,), ()), "nested": {"b": {}}, "again": [[], {}]}
    assert load(pickle.dumps(value, protocol), Vocabulary()) == value


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_classes_of_any_library_are_records_never_called(protocol: int) -> None:
    class_of_a_library = collections.OrderedDict([("step", 3)])
    value = {
        "ordered": class_of_a_library, "default": collections.defaultdict(list, {"a": [1]}), "bytes": b"\x00\xff",
        "set": {1, 2}, "frozen": frozenset([3]), "call": functools.partial(print, "never printed"), "after": 7,
    }  # fmt: skip
    found = load(pickle.dumps(value, protocol), PlainValues())
    assert (found["ordered"], found["default"], found["bytes"]) == ({"step": 3}, {"a": [1]}, b"\x00\xff")
    assert found["set"] == {1, 2}
    assert found["after"] == 7
    assert type(found["call"]) is Record
    assert "partial" in str(found["call"].kind) or "partial" in str(found["call"].arguments)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_without_a_vocabulary_no_global_is_allowed(protocol: int) -> None:
    with pytest.raises(PickleError, match="not allowed"):
        load(pickle.dumps(PurePosixPath("a"), protocol), Vocabulary())


def test_damage_at_any_byte_raises_no_other_error() -> None:
    data = pickle.dumps({"a": [1, 2.5, "x"], "b": functools.partial(int, "3"), "c": (None, True)}, 4)
    for at in range(len(data)):
        for other in (0, 1, 0x28, 0x52, 0x62, 0x93, 0xFF):
            broken = data[:at] + bytes([other]) + data[at + 1 :]
            for vocabulary in (PlainValues(), Vocabulary()):
                with contextlib.suppress(PickleError):
                    load(broken, vocabulary)
        with pytest.raises(PickleError):
            load(data[:at], PlainValues())


def test_a_memo_with_doubled_references_takes_no_time() -> None:
    lists: list = []
    for _ in range(60):
        lists = [lists, lists]
    assert type(load(pickle.dumps(lists, 4), PlainValues())) is list  # 2 ** 60 elements, if it were traversed


def test_keys_that_are_slow_to_hash_are_refused() -> None:
    nested: tuple = ("x",)
    for _ in range(30):
        nested = (nested, nested)
    key = pickle.dumps(nested, 2)[2:-1]
    with pytest.raises(PickleError, match="a key of type tuple"):
        load(b"\x80\x02}" + key + b"K\x01s.", PlainValues())


def test_records_are_keys_by_their_identity() -> None:
    data = b"\x80\x02}cmodule\nIndex\n)\x81}U\x01aK\x01sbK\x05s."
    ((key, value),) = load(data, PlainValues()).items()
    assert (key.kind, key.state, value) == (Global("module", "Index"), {"a": 1}, 5)


def test_number_of_operations_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """One byte makes a list of sixty: without a limit a file of 1 GB takes 60 GB of memory."""
    assert 1 << 20 < restricted_pickle.MAX_OPERATIONS < 1 << 26
    value = [[] for _ in range(200)]
    assert load(pickle.dumps(value, 2), PlainValues()) == value
    monkeypatch.setattr(restricted_pickle, "MAX_OPERATIONS", 200)
    with pytest.raises(PickleError, match="more than 200 operations"):
        load(pickle.dumps(value, 2), PlainValues())
