"""Judgement of what hosts show of a run: proofs, claims and well-formed false copies."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from midstream.errors import MidstreamError
from midstream.fleet.fleet import Fleet, LocalHostConfig
from midstream.ownership import memory, operator_key
from midstream.ownership.judgement import CLAIM, FORMER, OWNER, UNSIGNED
from midstream.ownership.owner_judge import OwnerJudge
from midstream.ownership.signed_chain import check_chain, first_chain, next_chain
from midstream_core import records
from support.ownership.chain_text import chain_text

RUN = "web"
NAMES = ("one", "two", "three", "bad")


@dataclass(frozen=True)
class Shown:
    """Records that a host shows of the run."""

    host: str
    fence: records.Fence | None
    ownership: str = ""


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet({name: LocalHostConfig(root=str(tmp_path / name)) for name in NAMES})


@pytest.fixture
def first() -> records.OwnershipChain:
    return first_chain(RUN, "one", records.first_fence("one"))


def as_operator(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Sign as another operator, with a state directory of its own, from here on."""
    monkeypatch.setenv("MIDSTREAM_STATE", str(tmp_path / f"state-of-{name}"))


def migrated(chain: records.OwnershipChain, owner: str, step: int) -> records.OwnershipChain:
    return next_chain(chain, epoch=chain.head.epoch + 1, owner=owner, step=step, migration=f"m{chain.head.epoch}")


def fence_of(chain: records.OwnershipChain) -> records.Fence:
    """Return the fence that an honest history of the chain has left."""
    fence = records.first_fence(chain.entries[0].owner)
    for entry in chain.entries[1:]:
        assert entry.step is not None
        fence = fence.sealed(entry.epoch, entry.owner, entry.step)
    return fence


def kinds(fleet: Fleet, *shown: Shown) -> dict[str, str]:
    judgement = OwnerJudge(fleet).judge(RUN, shown)
    return {each.host: judgement.standing(each.host).kind for each in shown}


def test_signed_owner_comes_before_a_higher_claim(fleet: Fleet, first: records.OwnershipChain) -> None:
    """A host shows the same chain, which is public, and a fence of ownership 9 with itself as the owner."""
    text = chain_text(first)
    honest = Shown("one", fence_of(first), text)
    false_copies = [
        Shown("bad", records.Fence(9, "bad"), text),
        Shown("bad", records.Fence(9, "one", 5), text),
        Shown("bad", fence_of(first), text),
        Shown("bad", records.Fence(9, "bad"), ""),
        Shown("bad", records.Fence(1, "bad"), ""),
    ]
    for false_copy in false_copies:
        assert kinds(fleet, honest, false_copy) == {"one": OWNER, "bad": CLAIM}, false_copy


def test_source_stays_owner_between_seal_and_signed_record(fleet: Fleet, first: records.OwnershipChain) -> None:
    second = migrated(first, "two", 20)
    sealed = fence_of(second)
    assert kinds(fleet, Shown("one", sealed, chain_text(first))) == {"one": OWNER}
    after = kinds(fleet, Shown("one", sealed, chain_text(second)), Shown("two", sealed, chain_text(second)))
    assert after == {"one": FORMER, "two": OWNER}


def test_owner_that_goes_two_epochs_on_by_itself_is_a_claim(fleet: Fleet, first: records.OwnershipChain) -> None:
    assert kinds(fleet, Shown("one", records.Fence(3, "one", 4), chain_text(first))) == {"one": CLAIM}


def test_hidden_record_is_found_by_memory(fleet: Fleet, first: records.OwnershipChain) -> None:
    """The owner does not answer, and the former owner shows the chain without the record that retired it."""
    second = migrated(first, "two", 20)
    false_copy = Shown("one", fence_of(first), chain_text(first))
    assert kinds(fleet, false_copy) == {"one": OWNER}, "without memory no other record is known"
    memory.remember(second)
    judgement = OwnerJudge(fleet).judge(RUN, [false_copy])
    assert judgement.standing("one").kind != OWNER
    assert judgement.head is not None
    assert (judgement.head.owner, judgement.owner_hosts) == ("two", ("two",))


def test_restored_copy_of_the_owner_is_named(fleet: Fleet, first: records.OwnershipChain) -> None:
    second = migrated(first, "two", 20)
    back = migrated(second, "one", 40)
    memory.remember(back)
    judgement = OwnerJudge(fleet).judge(RUN, [Shown("one", fence_of(first), chain_text(first))])
    standing = judgement.standing("one")
    assert standing.kind == CLAIM
    assert "an older copy, restored perhaps (ownership 1, one)" in standing.reason
    assert "one has it by a signed record (ownership 3)" in standing.reason


def test_chain_of_another_run_of_the_name_is_a_claim(fleet: Fleet, first: records.OwnershipChain) -> None:
    other = first_chain("other", "bad", records.first_fence("bad"))
    renamed = records.OwnershipChain(RUN, other.records)
    again = first_chain(RUN, "two", records.first_fence("two"))
    shown = [
        Shown("bad", records.first_fence("bad"), chain_text(renamed)),
        Shown("one", fence_of(first), chain_text(first)),
        Shown("two", fence_of(again), chain_text(again)),
    ]
    judgement = OwnerJudge(fleet).judge(RUN, shown)
    assert {each.host: judgement.standing(each.host).kind for each in shown} == {
        "bad": CLAIM,
        "one": CLAIM,
        "two": OWNER,
    }
    assert judgement.standing("one").reason.startswith("it is another run of this name")


def test_records_of_an_operator_who_is_not_named_prove_nothing(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Another operator's records count while ``operators:`` names the key, and no longer once it is removed."""
    as_operator("ann", monkeypatch, tmp_path)
    chain = first_chain(RUN, "one", records.first_fence("one"))
    shown, ann = Shown("one", fence_of(chain), chain_text(chain)), operator_key.public_key()
    as_operator("ben", monkeypatch, tmp_path)
    assert kinds(replace(fleet, operators=(ann,)), shown) == {"one": OWNER}
    assert kinds(fleet, shown) == {"one": CLAIM}
    extended = migrated(chain, "two", 5)
    assert check_chain(chain_text(extended), RUN, frozenset({operator_key.public_key()})).chain is None
    assert check_chain(chain_text(extended), RUN, frozenset({operator_key.public_key(), ann})).chain == extended


def test_two_histories_are_named_and_prove_nothing(fleet: Fleet, first: records.OwnershipChain) -> None:
    left, right = migrated(first, "two", 20), migrated(first, "three", 30)
    shown = [Shown("two", fence_of(left), chain_text(left)), Shown("three", fence_of(right), chain_text(right))]
    judgement = OwnerJudge(fleet).judge(RUN, shown)
    assert judgement.chain is None
    assert "two (ownership 2)" in judgement.problem
    assert "three (ownership 2)" in judgement.problem
    assert judgement.signed
    assert {judgement.standing(name).kind for name in ("two", "three")} == {CLAIM}


def test_runs_without_any_record_stay_as_they_are(fleet: Fleet) -> None:
    assert kinds(fleet, Shown("one", records.first_fence("one"))) == {"one": UNSIGNED}
    garbage = kinds(fleet, Shown("one", records.first_fence("one")), Shown("bad", records.Fence(9, "bad"), "{}"))
    assert garbage == {"one": UNSIGNED, "bad": CLAIM}


def test_standby_on_a_target_makes_no_claim(fleet: Fleet, first: records.OwnershipChain) -> None:
    honest = Shown("one", fence_of(first), chain_text(first))
    assert kinds(fleet, honest, Shown("two", None)) == {"one": OWNER, "two": FORMER}


@pytest.mark.parametrize("seed", range(20))
def test_changed_chain_is_never_accepted(fleet: Fleet, first: records.OwnershipChain, seed: int) -> None:
    """Cut, spliced, reordered, edited: only beginnings of the true chain are valid."""
    draw = random.Random(seed)
    chain = first
    for number in range(4):
        chain = migrated(chain, draw.choice(NAMES[:3]), 10 * number)
    other = migrated(first_chain(RUN, "bad", records.first_fence("bad")), "two", 3)
    keys = frozenset({operator_key.public_key()})
    for _ in range(50):
        changed = json.loads(json.dumps(chain.to_json()))
        kind = draw.choice(("drop", "swap", "edit", "splice", "insert", "resign"))
        at = draw.randrange(len(changed["records"]))
        record = changed["records"][at]
        if kind == "drop" and at < len(changed["records"]) - 1:
            del changed["records"][at]
        elif kind == "swap" and at:
            changed["records"][at - 1], changed["records"][at] = record, changed["records"][at - 1]
        elif kind == "edit":
            field = draw.choice(("epoch", "owner", "step", "time", "migration", "consent", "root_digest"))
            value = {"epoch": 7, "owner": "bad", "step": 99, "time": 1.0, "migration": "x"}.get(field, "abc")
            if record[field] == value:
                continue
            record[field] = value
        elif kind == "splice":
            changed["records"][at] = other.records[draw.randrange(2)]
        elif kind == "insert":
            changed["records"].insert(at, dict(record))
        elif kind == "resign":
            record["signature"] = other.records[0]["signature"]
        else:
            continue
        found = check_chain(json.dumps(changed), RUN, keys)
        assert found.chain is None, (kind, at)
        assert found.problem


def test_memory_only_grows(first: records.OwnershipChain) -> None:
    second = migrated(first, "two", 20)
    memory.remember(second, step=40, epoch=2, host="two")
    memory.remember(first, step=900, epoch=1, host="one")
    found = memory.recall(RUN)
    assert found is not None
    assert (found.chain, found.step, found.epoch, found.host) == (second, 40, 2, "two")
    with pytest.raises(MidstreamError, match="two signed histories"):
        memory.remember(migrated(first, "three", 30))
    assert memory.recall(RUN) == found
    again = first_chain(RUN, "three", records.first_fence("three"))
    memory.remember(again)
    replaced = memory.recall(RUN)
    assert replaced is not None
    assert (replaced.chain, replaced.earlier) == (again, [first.head.key])


def test_unreadable_memory_is_named(fleet: Fleet, first: records.OwnershipChain) -> None:
    memory.remember(first)
    memory.memory_file(RUN).write_text("{")
    judgement = OwnerJudge(fleet).judge(RUN, [Shown("one", fence_of(first), chain_text(first))])
    assert str(memory.memory_file(RUN)) in judgement.problem
    assert judgement.standing("one").kind == CLAIM


def test_files_of_the_operator_are_private(first: records.OwnershipChain) -> None:
    memory.remember(first)
    for path, mode in ((operator_key.key_file(), 0o600), (memory.memory_file(RUN), 0o600)):
        assert path.stat().st_mode & 0o777 == mode
    assert memory.memory_file(RUN).parent.stat().st_mode & 0o777 == 0o700


def test_signed_record_says_the_same_once(first: records.OwnershipChain) -> None:
    second = migrated(first, "two", 20)
    assert next_chain(second, epoch=2, owner="two", step=20, migration=second.head.migration) is second
