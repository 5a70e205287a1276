"""Trees of pickles: changed and written again, and never executed."""

from __future__ import annotations

import collections
import enum
import os
import pickle
from typing import Any

import pytest

from midstream_core import pickle_tree
from midstream_core.format_error import FormatError
from midstream_core.pickle_tree import Items, Made, Pairs, Persistent, pairs_of, set_value, value_of
from midstream_core.pickle_writer import MAX_DEPTH, dump
from midstream_core.restricted_pickle import Global
from midstream_host.formats import torch_tree


class Plain:
    """An object with a state."""


class Stage(enum.IntEnum):
    """An enumeration, as a stage of ZeRO is."""

    ONE = 1


class Listed(list):
    """A list with attributes: it is made, built and appended to."""


def value() -> dict[str, Any]:
    """One value of each kind that checkpoints have, with shared and recursive ones."""
    itself: Any = Plain()
    itself.me, itself.names = itself, ["a", "b"]
    listed: Any = Listed([1, 2])
    listed.extra = (1, (2, (3, 4, 5, 6)))
    shared = {"x": 1}
    return {
        "numbers": [0, 255, 256, 65536, -1, -(1 << 31), 1 << 31, 1 << 63, -(1 << 80), 1 << 2100, 1.5, float("inf")],
        "others": (None, True, False, "é\ud800", "", b"bytes", b""),
        "empty": [(), [], {}],
        "sets": [{1, 2}, frozenset([3])],
        "stage": Stage.ONE,
        "ordered": collections.OrderedDict([("b", 1), ("a", shared)]),
        "default": collections.defaultdict(list, {1: [2]}),
        "long": list(range(2500)),
        "wide": {number: str(number) for number in range(1500)},
        "itself": itself,
        "listed": listed,
        "shared": [shared, shared],
    }


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_tree_that_is_written_again_is_the_same_value(protocol: int) -> None:
    original = value()
    data = pickle.dumps(original, protocol)
    written = dump(pickle_tree.parse(data), protocol)
    again = pickle.loads(written)
    itself, listed = again.pop("itself"), again.pop("listed")
    assert itself.me is itself
    assert itself.names == ["a", "b"]
    assert (list(listed), listed.extra) == ([1, 2], (1, (2, (3, 4, 5, 6))))
    assert again["shared"][0] is again["shared"][1] is again["ordered"]["a"]
    assert again["default"].default_factory is list
    for name in ("itself", "listed"):
        del original[name]
    assert again == original
    assert dump(pickle_tree.parse(written), protocol) == written


def test_values_of_dicts_are_found_and_set() -> None:
    for mapping in ({"a": 1, 1: 2}, collections.OrderedDict([("a", 1), (1, 2)])):
        tree = pickle_tree.parse(pickle.dumps(mapping, 2))
        assert (value_of(tree, "a"), value_of(tree, 1), value_of(tree, True)) == (1, 2, None)
        set_value(tree, "a", 7)
        assert pickle.loads(dump(tree)) == {"a": 7, 1: 2}
        with pytest.raises(FormatError, match="it has no b"):
            set_value(tree, "b", 1)
    assert pairs_of(pickle_tree.parse(pickle.dumps([1], 2))) is None


class Hostile:
    """Executes a command where it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch /tmp/executed-by-a-pickle",)


def test_nothing_is_executed() -> None:
    tree = pickle_tree.parse(pickle.dumps(Hostile(), 2))
    assert type(tree) is Made
    assert tree.function == Global("posix", "system")
    assert pickle_tree.parse(dump(tree)).function == tree.function


@pytest.mark.parametrize(
    "data",
    [
        b"", b".", b"N", b"NN.", b"(N.", b"\x80\x02}(K\x01u.", b"\x80\x02]K\x01s.", b"\x80\x02K\x01)R.", b"a.",
        b"\x80\x02c\n\n)Rb.", b"N" * 100, b"\x80\x05\x96\x01\x00\x00\x00\x00\x00\x00\x00a.", b"\x80\x02\x8a\xffa.",
        b"\x80\x02K\x01K\x02\x86K\x03b.", b"h\x07.", b"I1\nI2\no.",
    ],
)  # fmt: skip
def test_damaged_pickles_are_refused(data: bytes) -> None:
    with pytest.raises(FormatError):
        pickle_tree.parse(data)


def test_deep_and_recursive_trees_are_refused() -> None:
    nested: Any = Items("list", [])
    for _ in range(MAX_DEPTH + 1):
        nested = Items("list", [nested])
    with pytest.raises(FormatError, match="levels deep"):
        dump(nested)
    tuple_of_itself = Items("tuple", [1])
    tuple_of_itself.items[0] = Items("list", [tuple_of_itself])
    with pytest.raises(FormatError, match=r"tuple that contains itself|levels deep"):
        dump(tuple_of_itself)


def tensor(storage: str, count: int) -> Made:
    """A tensor as ``torch.save`` writes it."""
    key = Items("tuple", ["storage", Global("torch", "FloatStorage"), storage, "cpu", count])
    arguments = [Persistent(key), 0, Items("tuple", [count]), Items("tuple", [1]), False, torch_tree.ordered_dict([])]
    return Made("REDUCE", Global("torch._utils", "_rebuild_tensor_v2"), Items("tuple", arguments))


def test_storages_are_numbered_in_the_order_of_the_pickle() -> None:
    first, second = tensor("7", 4), tensor("3", 2)
    tree = Pairs([["a", second], ["b", Items("list", [first, second])]])
    copy = torch_tree.cloned(first, "#1")
    tree.pairs.append(["c", copy])
    assert torch_tree.name_storages(tree) == [("3", "0"), ("7", "1"), ("7#1", "2")]
    read = torch_tree.tensor_of(first)
    assert read is not None
    assert (read.storage, read.length, read.width, read.contiguous) == ("1", 4, 4, True)
    torch_tree.make_flat(read, "x", 9)
    changed = torch_tree.tensor_of(first)
    assert changed is not None
    assert (changed.storage, changed.shape, changed.strides) == ("x", (9,), (1,))
    kept = torch_tree.tensor_of(copy)
    assert kept is not None
    assert kept.shape == (4,)


def test_differences_are_named_by_their_place() -> None:
    def same(_one: Any, _other: Any) -> None:
        return None

    def tree(rate: float) -> Any:
        return pickle_tree.parse(pickle.dumps({"groups": [{"lr": rate}], "nan": float("nan")}, 2))

    assert torch_tree.first_difference(tree(0.5), tree(0.5), same) == ""
    assert torch_tree.first_difference(tree(0.5), tree(0.25), same) == "groups.0.lr"
