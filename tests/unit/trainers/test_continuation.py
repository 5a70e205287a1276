"""State that a resume continues with on another number of processes, in preflight and `--check`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from midstream.check.check_result import FAIL, PASS, WARN, Check
from midstream.check.stored_checks import stored_checks
from midstream.errors import UsageError
from midstream.trainers.continuation import changes_of, stored_for
from midstream.trainers.registry import TRAINERS
from midstream.trainers.run_file_parser import parse_run_file
from midstream_host.driver.run_file import NO, UNKNOWN, YES, RunFile, StoredContents
from midstream_host.trainers.stored_state import StoredState

SCRIPT = (
    'resume: "python t.py {checkpoint}"\nmetrics: {source: jsonl, path: m}\ncheckpoints: {rule: RULE, pattern: c}\n'
)
RULES = {
    "accelerate": "accelerate",
    "deepspeed": "deepspeed",
    "torchrun": "dcp",
    "script": "glob",
    "maxtext": "maxtext",
}
FOUND = StoredState("/out", 40, 4096, True, True, True, 2, "stored", True, [], "", [])


def run_of(trainer: str, more: str = "") -> RunFile:
    text = f"trainer: {trainer}\ncommand: python t.py\n{more}"
    if trainer in RULES:
        text += SCRIPT.replace("RULE", RULES[trainer])
    return parse_run_file(text, Path("run.yaml")).run


def checks(run: RunFile, found: StoredState, before: int = 2, after: int = 2) -> dict[str, Check]:
    return {each.name: each for each in stored_checks(run, found, before, after)}


@pytest.mark.parametrize(
    ("trainer", "stated", "random_state", "data_position"),
    [
        ("huggingface", "", NO, YES),
        ("lightning", "stored: {data_position: 'yes'}\n", NO, NO),
        ("accelerate", "stored: {random_state: 'yes', data_position: 'yes'}\n", NO, NO),
        ("deepspeed", "stored: {random_state: 'yes', data_position: 'yes'}\n", NO, UNKNOWN),
        ("torchrun", "stored: {random_state: 'yes', data_position: 'yes'}\n", UNKNOWN, UNKNOWN),
        ("levanter", "", YES, YES),
        ("maxtext", "stored: {data_position: 'yes'}\n", YES, YES),
        ("script", "stored: {random_state: 'yes', data_position: 'no'}\n", UNKNOWN, NO),
    ],
)
def test_stored_state_depends_on_the_number_of_processes(trainer, stated, random_state, data_position) -> None:
    run = run_of(trainer, stated)
    assert stored_for(run, 2, 2) == run.stored
    for before, after in ((2, 1), (1, 2), (2, 4)):
        found = stored_for(run, before, after)
        assert (found.random_state, found.data_position) == (random_state, data_position)


def test_every_trainer_has_a_row_of_the_table() -> None:
    assert set(TRAINERS) == {
        "huggingface",
        "lightning",
        "accelerate",
        "deepspeed",
        "torchrun",
        "levanter",
        "maxtext",
        "script",
    }


def test_random_state_of_two_processes_is_lost_on_one() -> None:
    run = run_of("huggingface")
    assert checks(run, FOUND)["random state"].state == PASS
    found = checks(run, FOUND, 2, 1)["random state"]
    assert found.state == WARN
    assert found.detail == (
        "of its own number of processes: on 2 processes -> 1 dropout and augmentation draw other numbers"
    )


def test_one_random_state_of_jax_is_that_of_all_processes() -> None:
    found = dataclasses.replace(FOUND, random_states=1)
    for trainer, state in (("levanter", PASS), ("maxtext", PASS), ("huggingface", WARN)):
        assert checks(run_of(trainer), found, 2, 2)["random state"].state == state


def test_other_place_of_checkpoints_is_named() -> None:
    run = run_of("levanter")
    named = checks(run, dataclasses.replace(FOUND, elsewhere="/tmp/soon"))["checkpoints"]
    assert (named.state, named.detail) == (PASS, "looked for in /out and /tmp/soon (temporary_base_path)")
    unread = dataclasses.replace(FOUND, elsewhere="gs://b", unread="temporary_base_path gs://b is not looked at")
    assert checks(run, unread)["checkpoints"].state == WARN
    assert "checkpoints" not in checks(run, FOUND)


def test_changes_are_named_where_the_number_changes() -> None:
    assert changes_of(run_of("accelerate"), 2, 2) == ()
    assert any("scheduler steps once for each process" in line for line in changes_of(run_of("accelerate"), 2, 4))
    assert any("dispatch_batches" in line for line in changes_of(run_of("huggingface"), 1, 2))
    assert any("shuffles a training loader" in line for line in changes_of(run_of("lightning"), 1, 2))
    assert changes_of(run_of("lightning"), 2, 4) == ()


def test_loader_that_refuses_other_ranks_fails_the_preflight() -> None:
    run, found = run_of("torchrun"), dataclasses.replace(FOUND, loader_ranks=2)
    assert "processes" not in checks(run, found)
    refused = checks(run, found, 2, 1)["processes"]
    assert refused.state == FAIL
    assert "loader states of 2 data-parallel ranks, and its loader refuses another number" in refused.detail
    assert refused.hint.startswith("count that works: 2")
    sharded = checks(run, found, 4, 2)["processes"]  # the other two are tensor-parallel
    assert sharded.state == WARN
    without = dataclasses.replace(run, resume=[*run.resume, "--checkpoint.exclude_from_loading", "dataloader"])
    assert "processes" not in checks(without, found, 2, 1)


def test_checkpoint_of_deepspeed_inside_another_trainer_stays() -> None:
    """The run file says that the trainer reshards; the checkpoint says that this one does not."""
    run, found = run_of("huggingface"), dataclasses.replace(FOUND, reshards=False)
    assert [each.name for each in stored_checks(run, found, 2, 4) if each.state == FAIL] == ["processes"]
    assert "processes" not in checks(run, found)
    converts = dataclasses.replace(run, resume=["sh", "-c", "python -m deepspeed.checkpoint.ds_to_universal x"])
    assert not [each for each in stored_checks(converts, found, 2, 4) if each.state == FAIL]
    assert not [each for each in stored_checks(run_of("script"), found, 2, 4) if each.state == FAIL]


def test_model_that_is_divided_needs_a_multiple_of_its_ranks() -> None:
    run, stored = run_of("deepspeed"), dataclasses.replace(FOUND, model_ranks=4)
    (refused,) = (each for each in stored_checks(run, stored, 8, 6) if each.state == FAIL)
    assert refused.hint == "counts that work: multiples of 4"
    divided = checks(run, stored, 8, 4)["processes"]
    assert (divided.state, "the checkpoint is divided over them" in divided.detail) == (WARN, True)


def test_automatic_names_that_begin_again_are_named() -> None:
    run, found = run_of("accelerate"), dataclasses.replace(FOUND, counted_name=7)
    named = checks(run, found)["names"]
    assert named.state == WARN
    assert "checkpoint_7" in named.detail
    assert "project_configuration.iteration" in named.hint
    continued = dataclasses.replace(found, words=["project_configuration", "iteration"])
    assert checks(run, continued)["names"].state == PASS
    assert checks(run, dataclasses.replace(found, words=["iteration"]))["names"].state == WARN
    assert "names" not in checks(run, FOUND)


def test_words_of_a_run_show_what_its_libraries_lose() -> None:
    run = run_of("huggingface")
    found = dataclasses.replace(FOUND, words=["GRPOConfig", "streaming"])
    libraries = [each for each in stored_checks(run, found, 2, 2) if each.name == "library"]
    assert [each.detail.split(":")[0] for each in libraries] == ["trl 1.16, GRPO generations"]
    elsewhere = [each for each in stored_checks(run, found, 2, 1) if each.name == "library"]
    assert [each.detail.split(",")[0] for each in elsewhere] == ["trl 1.16", "datasets 5.2.0"]


def test_stored_is_one_of_three_words() -> None:
    with pytest.raises(UsageError, match=r"stored.*random_state.*yes, no or unknown"):
        run_of("huggingface", "stored: {random_state: maybe}\n")
    assert StoredContents(YES, NO).data_position == NO
