"""Rules of completeness of other trainers' checkpoints, on what the trainers wrote."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from midstream_engine.foreign.checkpoints import checkpoint_finder, huggingface
from midstream_engine.foreign.checkpoints.checkpoint import Checkpoint, IncompleteError
from midstream_engine.foreign.checkpoints.checkpoint_finder import CheckpointFinder, find_checkpoints, saved_state
from midstream_engine.foreign.checkpoints.search import SearchError, search
from midstream_engine.foreign.formats import torch_archive
from support.paths import FIXTURES


class Case(NamedTuple):
    """A checkpoint that a trainer wrote. ``optional``: files that a resume does not need."""

    rule: str
    run: str
    path: str
    step: int
    ranks: int | None
    optional: str = r"(?!)"
    unchecked: str = r"(?!)"  # files without a size outside of them: they are only seen to be there


CASES = {
    "huggingface": Case(
        "huggingface", "trainers/huggingface", "checkpoint-6", 6, 2, r"config\.json|training_args\.bin",
        r"config\.json|training_args\.bin",
    ),
    "lightning": Case(
        "lightning", "trainers/lightning", "lightning_logs/version_0/checkpoints/epoch=0-step=6.ckpt", 6, 1
    ),
    "accelerate": Case("accelerate", "trainers/accelerate", "step_4", 4, 2, r"scheduler\.bin|dl_state_dict\.bin"),
    "dcp": Case("dcp", "trainers/dcp", "step-4", 4, 2),
    "script": Case("glob", "trainers/script", "ckpt.pt", 4, None),
    "deepspeed zero 1": Case("deepspeed", "trainers/deepspeed", "global_step4", 4, 2),
    "deepspeed zero 3": Case("deepspeed", "trainers/deepspeed-zero3", "global_step4", 4, 2),
    "deepspeed": Case("deepspeed", "neox/pythia-bf16-z1-dp3", "global_step3", 3, 3, r"configs/.*", r"configs/.*"),
    "deepspeed pipeline": Case(
        "deepspeed", "neox/llama-bf16-z1-tp2-pp2-dp2", "global_step3", 3, 8, r"configs/.*|layer_0[14]-model_0.*",
        r"configs/.*",
    ),
    "levanter": Case("levanter", "levanter/gpt2", "step-3", 4, None, r"d/.*", r"d/.*"),
    "orbax": Case(
        "orbax", "trainers/orbax", "4", 4, 1,
        r".*process_0/d/.*|.*_sharding|.*array_metadatas/.*|.*commit_success\.txt|_CHECKPOINT_METADATA",
        r".*/d/.*|.*commit_success\.txt",
    ),
}  # fmt: skip
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@pytest.fixture
def copy(tmp_path: Path) -> Callable[[Case], Path]:
    """Copy a case's checkpoint, with what is beside it, into a directory; return the checkpoint's path there."""

    def make(case: Case) -> Path:
        source = FIXTURES / case.run
        shutil.copytree(source, tmp_path / "run")
        return tmp_path / "run" / case.path

    return make


def look(case: Case, path: Path, ranks: int | None = None) -> Checkpoint:
    """Return what is found of one checkpoint."""
    pattern = "/".join(re.sub(r"([\[\]])", r"[\1]", part) for part in case.path.split("/"))
    directory = Path(str(path)[: -len(case.path)])
    (found,) = find_checkpoints(case.rule, str(directory), pattern, ranks if ranks is not None else case.ranks)
    return found


def refused(case: Case, path: Path) -> str:
    """The reason why a checkpoint is refused."""
    found = look(case, path)
    assert not found.complete
    assert found.reason
    assert "\n" not in found.reason
    return found.reason


def files_of(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())


@each_case
def test_a_checkpoint_as_written_is_complete(case: Case) -> None:
    found = look(case, FIXTURES / case.run / case.path)
    assert (found.complete, found.reason, found.step) == (True, "", case.step)
    on_disk = {
        str(each.relative_to(FIXTURES / case.run)): each.stat().st_size
        for each in files_of(FIXTURES / case.run / case.path)
    }
    assert {each.path: each.size for each in found.files} == on_disk


@each_case
def test_a_missing_file_is_named(case: Case, copy: Callable[[Case], Path]) -> None:
    path = copy(case)
    if path.is_file():
        pytest.skip("it is one file")
    for each in files_of(path):
        name = str(each.relative_to(path))
        content = each.read_bytes()
        each.unlink()
        if re.fullmatch(case.optional, name):
            assert look(case, path).complete, name
        else:
            reason = refused(case, path)
            assert each.name in reason or each.parent.name in reason, (name, reason)
        each.write_bytes(content)
    assert look(case, path).complete


def boundaries(path: Path) -> Iterator[int]:
    """Lengths to cut a file at: none, one byte, at each part of its format, all but one byte."""
    size = path.stat().st_size
    yield from {0, 1, size // 2, size - 1}
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            yield from {info.header_offset for info in archive.infolist()}
            yield archive.start_dir
        yield size - 22
    elif path.suffix == ".safetensors":
        (length,) = struct.unpack("<Q", path.read_bytes()[:8])
        yield from (8, 8 + length)


@each_case
def test_a_truncated_file_is_named_at_each_length(case: Case, copy: Callable[[Case], Path]) -> None:
    path = copy(case)
    for each in files_of(path):
        name = "" if each == path else str(each.relative_to(path))
        content = each.read_bytes()
        if not content or re.fullmatch(case.unchecked, name):
            continue
        for length in sorted(set(boundaries(each))):
            if content[:length] == content.rstrip():  # JSON without the end of its line
                continue
            each.write_bytes(content[:length])
            found = look(case, path)
            assert not found.complete, (name, length)
            assert each.name in found.reason, (name, length, found.reason)
        each.write_bytes(content)
    assert look(case, path).complete


@each_case
def test_bytes_missing_in_an_archive_are_found(case: Case, copy: Callable[[Case], Path]) -> None:
    path = copy(case)
    archives = [each for each in files_of(path) if zipfile.is_zipfile(each) and each.name != "training_args.bin"]
    for each in archives:
        content = each.read_bytes()
        each.write_bytes(content[:64] + content[128:])
        assert each.name in refused(case, path)
        each.write_bytes(content)


@each_case
def test_a_link_is_refused_since_only_files_are_copied(case: Case, copy: Callable[[Case], Path]) -> None:
    path = copy(case)
    each = files_of(path)[-1]
    each.rename(each.with_name("elsewhere"))
    each.symlink_to("elsewhere")
    if each == path:
        found = find_checkpoints(case.rule, str(path.parent), path.name.replace("[", "[[]"), case.ranks)
        assert found == []
    else:
        assert "link" in refused(case, path)


@each_case
def test_a_pipe_among_the_files_is_refused(case: Case, copy: Callable[[Case], Path]) -> None:
    path = copy(case)
    each = files_of(path)[0]
    each.unlink()
    os.mkfifo(each)
    assert "no regular file" in refused(case, path)


# --------------------------------------------------------------------------------------- each rule's own


def test_huggingface_sentinel_refuses_what_else_is_complete(copy: Callable[[Case], Path]) -> None:
    path = copy(CASES["huggingface"])
    (path / huggingface.SENTINEL).write_text("Checkpoint started at step 6 and in progress...")
    assert huggingface.SENTINEL in refused(CASES["huggingface"], path)


def test_huggingface_without_its_state_is_refused(copy: Callable[[Case], Path]) -> None:
    path = copy(CASES["huggingface"])
    for name in ("optimizer.pt", "scheduler.pt", "rng_state_0.pth", "rng_state_1.pth"):
        (path / name).unlink()
    assert "optimizer.pt is missing" in refused(CASES["huggingface"], path)


def test_huggingface_step_has_to_agree_with_the_name(copy: Callable[[Case], Path]) -> None:
    path = copy(CASES["huggingface"])
    state = json.loads((path / "trainer_state.json").read_text())
    (path / "trainer_state.json").write_text(json.dumps({**state, "global_step": 5}))
    assert refused(CASES["huggingface"], path) == "trainer_state.json has step 5, and the name has step 6"


@pytest.mark.parametrize(
    ("ranks", "words"), [(1, "rng_state.pth is missing"), (3, "rng_state_2.pth is missing: the random state of rank 2")]
)
def test_huggingface_needs_a_random_state_of_every_rank(ranks: int, words: str) -> None:
    found = look(CASES["huggingface"], FIXTURES / "trainers/huggingface/checkpoint-6", ranks)
    assert not found.complete
    assert words in found.reason


def test_huggingface_shards_have_to_be_those_of_the_index(copy: Callable[[Case], Path]) -> None:
    path = copy(CASES["huggingface"])
    (path / "model.safetensors").rename(path / "model-00001-of-00002.safetensors")
    assert "index" in refused(CASES["huggingface"], path)
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "model-00002-of-00002.safetensors is missing" in refused(CASES["huggingface"], path)
    shutil.copy(path / "model-00001-of-00002.safetensors", path / "model-00002-of-00002.safetensors")
    assert look(CASES["huggingface"], path).complete


def test_lightning_name_has_to_agree_with_its_step(copy: Callable[[Case], Path]) -> None:
    path = copy(CASES["lightning"])
    path.rename(path.with_name("epoch=0-step=7.ckpt"))
    (found,) = find_checkpoints("lightning", str(path.parent), "epoch=0-step=7.ckpt", 1)
    assert found.reason == "it has step 6, and its name has step 7"


def test_dcp_data_may_be_longer_and_never_shorter(copy: Callable[[Case], Path]) -> None:
    path = copy(CASES["dcp"])
    data = path / "__1_0.distcp"
    content = data.read_bytes()
    data.write_bytes(content + b"more")
    assert look(CASES["dcp"], path).complete
    data.write_bytes(content[:-1])
    assert f"{len(content) - 1} bytes, and .metadata names {len(content)}" in refused(CASES["dcp"], path)


def test_dcp_being_written_again_is_refused(copy: Callable[[Case], Path]) -> None:
    path = copy(CASES["dcp"])
    (path / ".metadata.tmp").write_bytes(b"")
    assert "being written" in refused(CASES["dcp"], path)


def test_deepspeed_latest_decides_what_is_finished(copy: Callable[[Case], Path]) -> None:
    path = copy(CASES["deepspeed"])
    latest = path.parent / "latest"
    latest.write_text("global_step2")
    assert "latest names global_step2" in refused(CASES["deepspeed"], path)
    latest.write_text("global_step9")
    assert look(CASES["deepspeed"], path).complete
    latest.unlink()
    assert "latest is missing" in refused(CASES["deepspeed"], path)


def test_deepspeed_of_another_number_of_ranks_is_refused() -> None:
    found = look(CASES["deepspeed"], FIXTURES / "neox/pythia-bf16-z1-dp3/global_step3", 4)
    assert found.reason == "it was written by 3 ranks, and the run has 4"


def test_orbax_is_renamed_when_it_is_complete(copy: Callable[[Case], Path]) -> None:
    path = copy(CASES["orbax"])
    path.rename(path.with_name("4.orbax-checkpoint-tmp"))
    found = [each for each in find_checkpoints("orbax", str(path.parent)) if each.path.startswith("4")]
    assert [(each.step, each.complete) for each in found] == [(4, False)]
    assert "orbax-checkpoint-tmp" in found[0].reason


def test_orbax_without_a_time_of_its_commit_is_refused(copy: Callable[[Case], Path]) -> None:
    path = copy(CASES["orbax"])
    metadata = json.loads((path / "_CHECKPOINT_METADATA").read_text())
    (path / "_CHECKPOINT_METADATA").write_text(json.dumps({**metadata, "commit_timestamp_nsecs": None}))
    assert look(CASES["orbax"], path).complete
    (path / "commit_success.txt").unlink()
    assert "time of the commit" in refused(CASES["orbax"], path)
    (path / "_CHECKPOINT_METADATA").unlink()
    assert "neither" in refused(CASES["orbax"], path)


def test_levanter_arrays_of_zarr_need_every_chunk(tmp_path: Path) -> None:
    path = tmp_path / "step-7"
    array = path / "model" / "weight"
    array.mkdir(parents=True)
    (path / "metadata.json").write_text(json.dumps({"step": 7, "is_temporary": True}))
    (array / ".zarray").write_text(json.dumps({"shape": [4, 3], "chunks": [2, 3], "zarr_format": 2}))
    case = Case("levanter", "", "step-7", 8, None)
    for count, name in enumerate(("0.0", "1.0")):
        assert refused(case, path) == f"model/weight has {count} chunks of 2"
        (array / name).write_bytes(b"chunk")
    assert look(case, path).step == 8
    assert saved_state("levanter", str(path)).advice == [
        "it is a temporary checkpoint, which Levanter deletes when it has written a newer one"
    ]


def test_a_scripts_file_has_its_step_in_it_or_in_its_name(copy: Callable[[Case], Path]) -> None:
    path = copy(CASES["script"])
    (path.parent / "model_000123.bin.txt").write_text("x")
    found = find_checkpoints("glob", str(path.parent), "*")
    steps = {each.path: (each.step, each.complete) for each in found}
    assert steps["ckpt.pt"] == (4, True)
    assert steps["model_000123.bin.txt"] == (123, True)


# ------------------------------------------------------------------------------------- what is in them


@pytest.mark.parametrize(
    ("name", "position", "random", "scheduler", "advice"),
    [
        ("huggingface", "recomputed", 2, True, ""),
        ("lightning", "none", 0, True, "StatefulDataLoader"),
        ("accelerate", "stored", 2, True, "use_seedable_sampler"),
        ("dcp", "none", 0, True, "by the step"),
        ("script", "none", 1, False, "by the step"),
        ("deepspeed", "none", 1, True, "ds_to_universal"),
        ("levanter", "recomputed", 1, True, ""),
        ("orbax", "none", 0, True, "grain"),
    ],
)
def test_saved_state_says_what_a_resume_continues(name, position, random, scheduler, advice) -> None:
    case = CASES[name]
    state = saved_state(case.rule, str(FIXTURES / case.run / case.path))
    assert (state.model, state.optimizer) == (True, True)
    assert (state.data_position, state.random_states, state.scheduler) == (position, random, scheduler)
    assert advice in " ".join(state.advice)


def test_huggingface_without_skipped_batches_restarts_its_data(copy: Callable[[Case], Path]) -> None:
    path = copy(CASES["huggingface"])
    data = (path / "training_args.bin").read_bytes()
    name = b"ignore_data_skip"
    at = data.index(name) + len(name)
    at += data[at : at + 8].index(b"\x89")  # False
    (path / "training_args.bin").write_bytes(data[:at] + b"\x88" + data[at + 1 :])
    state = saved_state("huggingface", str(path))
    assert state.data_position == "none"
    assert "ignore_data_skip" in state.advice[0]


def test_a_stateful_loader_is_seen_in_a_checkpoint_of_lightning() -> None:
    (path,) = (FIXTURES / "trainers/lightning-stateful").rglob("epoch=0-step=3.ckpt")
    state = saved_state("lightning", str(path))
    assert state.data_position == "stored"
    assert not [line for line in state.advice if "StatefulDataLoader" in line]


# --------------------------------------------------------------------------------------------- search


def test_a_checkpoint_is_read_again_only_after_a_change(
    copy: Callable[[Case], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES["huggingface"]
    path = copy(case)
    looked: list[str] = []
    check = huggingface.check

    def counted(tree, ranks):
        looked.append(tree.name)
        return check(tree, ranks)

    monkeypatch.setattr(huggingface, "check", counted)
    finder = CheckpointFinder(case.rule, str(path.parent), "", 2)
    first = finder.find()
    assert [each.path for each in first] == ["checkpoint-3", "checkpoint-6"]
    assert finder.find() == first
    assert sorted(looked) == ["checkpoint-3", "checkpoint-6"]
    os.truncate(path / "optimizer.pt", 100)
    assert [each.complete for each in finder.find()] == [True, False]
    assert looked[2:] == ["checkpoint-6"]


def test_a_checkpoint_that_changes_while_read_is_incomplete(
    copy: Callable[[Case], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = copy(CASES["huggingface"])
    check = huggingface.check

    def slow(tree, ranks):
        step = check(tree, ranks)
        (path / "optimizer.pt").write_bytes(b"other")
        return step

    monkeypatch.setattr(huggingface, "check", slow)
    assert "changed" in refused(CASES["huggingface"], path)


def test_a_checkpoint_deleted_in_the_same_time_is_no_error(
    copy: Callable[[Case], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = copy(CASES["huggingface"])

    def removed(tree, ranks):
        shutil.rmtree(path)
        return huggingface.check_weights(tree)

    monkeypatch.setattr(huggingface, "check", removed)
    assert "disappeared" in refused(CASES["huggingface"], path)


def test_no_directory_has_no_checkpoints(tmp_path: Path) -> None:
    assert find_checkpoints("huggingface", str(tmp_path / "none")) == []
    with pytest.raises(ValueError, match="no rule"):
        find_checkpoints("other", str(tmp_path))


@pytest.mark.parametrize("pattern", ["/etc/*", "../*", "a//b", "a/./b", "", "a\0"])
def test_a_pattern_outside_of_the_directory_is_refused(tmp_path: Path, pattern: str) -> None:
    with pytest.raises(SearchError):
        search(str(tmp_path), pattern)


def test_search_is_bounded_and_follows_no_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "x.ckpt").write_text("")
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "y.ckpt").write_text("")
    (tmp_path / "loop").symlink_to(tmp_path)
    assert search(str(tmp_path), "**/*.ckpt") == ["a/b/x.ckpt"]
    assert search(str(tmp_path), "a/*/*.ckpt") == ["a/b/x.ckpt"]
    monkeypatch.setattr("midstream_engine.foreign.checkpoints.search.MOST_ENTRIES", 2)
    with pytest.raises(SearchError, match="more than 2 entries"):
        search(str(tmp_path), "**/*.ckpt")


def test_only_the_newest_of_many_checkpoints_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_finder, "MOST_CHECKPOINTS", 2)
    for step in (5, 10, 100):
        (tmp_path / f"checkpoint-{step}").mkdir()
    assert [each.step for each in find_checkpoints("huggingface", str(tmp_path))] == [10, 100]


# -------------------------------------------------------------------------------------- hostile files


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_a_pickle_that_calls_is_not_called(copy: Callable[[Case], Path], tmp_path: Path) -> None:
    path, mark = copy(CASES["dcp"]), tmp_path / "called"
    for value in (Bomb(mark), {"storage_data": Bomb(mark)}):
        (path / ".metadata").write_bytes(pickle.dumps(value))
        assert ".metadata" in refused(CASES["dcp"], path)
    archive = path.parent / "ckpt.pt"
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("archive/data.pkl", pickle.dumps({"step": 3, "bomb": Bomb(mark)}, 2))
    (found,) = find_checkpoints("glob", str(path.parent))
    assert (found.step, found.complete) == (3, True)
    assert saved_state("glob", str(archive)).optimizer is False
    assert not mark.exists()
    assert pickle.loads(pickle.dumps(Bomb(mark))) is None  # it is one that would have been called
    assert mark.exists()


def test_dcp_metadata_that_names_a_file_outside_is_refused(copy: Callable[[Case], Path]) -> None:
    path = copy(CASES["dcp"])
    data = (path / ".metadata").read_bytes()
    assert b"__0_0.distcp" in data
    (path / ".metadata").write_bytes(data.replace(b"__0_0.distcp", b"../../../etc"))
    assert "outside of the checkpoint" in refused(CASES["dcp"], path)


@pytest.mark.parametrize("deep", [b"(" * 100_000 + b".", b"]" * 100_000 + b"a" * 99_999 + b".", b"\x80\x02" + b"}" * 9])
def test_deep_and_broken_pickles_are_refused(copy: Callable[[Case], Path], deep: bytes) -> None:
    path = copy(CASES["dcp"])
    (path / ".metadata").write_bytes(deep)
    assert ".metadata" in refused(CASES["dcp"], path)


def test_sizes_in_files_are_never_trusted(copy: Callable[[Case], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    path = copy(CASES["huggingface"])
    (path / "model.safetensors").write_bytes(struct.pack("<Q", 1 << 62) + b"{}")
    assert "header would have" in refused(CASES["huggingface"], path)
    header = json.dumps({"a": {"data_offsets": [0, 1 << 62]}}).encode()
    (path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    assert "names" in refused(CASES["huggingface"], path)
    (path / "model.safetensors").write_bytes(struct.pack("<Q", 50_000) + b"[" * 50_000)
    assert "not JSON" in refused(CASES["huggingface"], path)
    monkeypatch.setattr(torch_archive, "DIRECTORY_LIMIT", 64)
    shutil.copy(FIXTURES / "trainers/huggingface/checkpoint-6/model.safetensors", path / "model.safetensors")
    assert "no complete zip archive" in refused(CASES["huggingface"], path)


def test_many_files_and_deep_folders_are_refused(copy: Callable[[Case], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    path = copy(CASES["huggingface"])
    deep = path.joinpath(*["d"] * 20)
    deep.mkdir(parents=True)
    assert "too deeply" in refused(CASES["huggingface"], path)
    shutil.rmtree(path / "d")
    monkeypatch.setattr("midstream_engine.foreign.checkpoints.checkpoint_tree.MOST_FILES", 3)
    assert "more than 3 files" in refused(CASES["huggingface"], path)


def test_incomplete_reasons_are_of_bounded_length() -> None:
    assert len(str(IncompleteError("x" * 10_000))) == 400
