"""Checkpoints of DeepSpeed for another number of processes: what is written, what is refused, what continues.

The fixtures were written by DeepSpeed itself, 0.19.8 and 0.16.5 (GPT-NeoX's). What is divided twice, to another number
and back, has to be what DeepSpeed wrote: numbers, paddings and addresses of every rank.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from midstream_core import pickle_tree
from midstream_host.driver.reshard import reshard as module
from midstream_host.driver.reshard.checkpoint import StoredCheckpoint
from midstream_host.driver.reshard.errors import ReshardError
from midstream_host.driver.reshard.optimizer_file import OptimizerFile
from midstream_host.driver.reshard.reshard import reshard, tag_of
from midstream_host.driver.reshard.segments import Archive
from midstream_host.formats import torch_tree
from midstream_host.formats.torch_tree import tensor_of

FIXTURES = Path(__file__).resolve().parents[3] / "fixtures"
ZERO1 = FIXTURES / "trainers/deepspeed/global_step4"
ZERO3 = FIXTURES / "trainers/deepspeed-zero3/global_step4"
SOURCES = {
    "zero1-fp32": ZERO1,
    "zero3-fp32": ZERO3,
    **{
        name: FIXTURES / "neox" / name / "global_step3"
        for name in (
            "llama-bf16-z1-dp5", "llama-fp32-z1-dp3", "pythia-fp16-z1-dp2", "llama-bf16-z1-tp2-pp2-dp2",
            "tied-fp32-z1-pp2-tp2", "sequential-bf16-z0-dp1", "sequential-fp16-z0-dp1", "sequential-fp32-z0-dp1",
        )
    },
}  # fmt: skip

QUICK = {("zero1-fp32", 3), ("zero3-fp32", 8), ("llama-bf16-z1-dp5", 2), ("pythia-fp16-z1-dp2", 1),
         ("llama-bf16-z1-tp2-pp2-dp2", 3), ("sequential-fp32-z0-dp1", 4)}  # fmt: skip


def contents(directory: Path) -> dict[str, bytes]:
    """Bytes of each file below a directory."""
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def tensor_bytes(archive: Archive, tensor: torch_tree.Tensor) -> bytes:
    start = tensor.offset * tensor.width
    blocks = archive.blocks("data/" + tensor.storage, start, start + tensor.length * tensor.width)
    return b"".join(bytes(block) for block, _ in blocks)


def difference(one: Path, other: Path, padded: bool) -> str:
    """The place where two archives differ, whatever their storages are called; empty: nowhere.

    ``padded``: flat tensors are compared by their length, because ZeRO 3 leaves any numbers between parameters.
    """
    archives = Archive(str(one)), Archive(str(other))

    def same(first: object, second: object) -> bool | None:
        tensor, second_tensor = tensor_of(first), tensor_of(second)
        if tensor is None or second_tensor is None:
            return None
        if tensor.shape != second_tensor.shape or (padded and len(tensor.shape) == 1):
            return tensor.shape == second_tensor.shape
        contiguous = tensor.contiguous and second_tensor.contiguous
        return contiguous and tensor_bytes(archives[0], tensor) == tensor_bytes(archives[1], second_tensor)

    first_tree, second_tree = (pickle_tree.parse(archive.text("data.pkl")) for archive in archives)
    return torch_tree.first_difference(first_tree, second_tree, same)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        pytest.param(name, ranks, marks=[] if (name, ranks) in QUICK else [pytest.mark.drawn])
        for name in SOURCES
        for ranks in (1, 2, 3, 4, 8)
    ],
)
def test_divided_twice_it_is_what_deepspeed_wrote(tmp_path: Path, name: str, ranks: int) -> None:
    source = SOURCES[name]
    result = reshard(str(source), str(tmp_path / "other"), ranks)
    back = reshard(str(tmp_path / "other"), str(tmp_path / "back"), result.ranks_before)
    assert result.digests == back.digests
    assert back.ranks_before == ranks
    names = {path.name for path in source.rglob("*") if path.is_file()}
    assert {path.name for path in (tmp_path / "back").rglob("*") if path.is_file()} == names
    for path in sorted(source.glob("*.pt")):
        assert difference(path, tmp_path / "back" / path.name, "zero3" in name) == "", path.name


def addressed(directory: Path, ranks: int) -> dict[str, list[float]]:
    """Masters of each parameter, by the addresses that the files have; rounded to float16."""
    result: dict[str, list[float]] = {}
    for rank in range(ranks):
        file = OptimizerFile(Archive(str(directory / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")))
        mappings = pickle_tree.items_of(pickle_tree.value_of(file.state, "param_slice_mappings")) or []
        for flat, mapping in zip(file.flats, mappings, strict=True):
            masters = array(file.archive, flat["fp32"], "f")
            for name, address in pickle_tree.pairs_of(mapping) or []:
                fields: dict[str, Any] = dict(pickle_tree.pairs_of(address.steps[-1].values[0]) or [])
                part = masters[fields["start"] : fields["start"] + fields["numel"]]
                result.setdefault(name, []).extend(struct.unpack("<e", struct.pack("<e", number))[0] for number in part)
    return result


def weights(directory: Path, names: Iterable[str]) -> dict[str, list[float]]:
    """Numbers of the module's parameters in float16."""
    model = Archive(str(directory / "mp_rank_00_model_states.pt"))
    state = pickle_tree.value_of(pickle_tree.parse(model.text("data.pkl")), "module")
    tensors = {name: tensor_of(pickle_tree.value_of(state, name)) for name in names}
    return {name: array(model, tensor, "e") for name, tensor in tensors.items() if tensor is not None}


def array(archive: Archive, tensor: torch_tree.Tensor, code: str) -> list[float]:
    """The numbers of a tensor."""
    data = tensor_bytes(archive, tensor)
    return list(struct.unpack(f"<{len(data) // struct.calcsize(code)}{code}", data))


@pytest.mark.parametrize("name", ["zero1", "bf16", "zero2", "zero3"])
def test_it_is_what_three_ranks_of_deepspeed_save(tmp_path: Path, name: str) -> None:
    """They have loaded it and saved it again: their paddings, orders, subgroups and addresses are DeepSpeed's own.

    Two groups, a frozen and a tied parameter. ``zero2`` is in the order of ``round_robin_gradients``; DeepSpeed's own
    addresses are wrong there (findings/deepspeed_universal_round_robin.sh), and those that are written are right.
    """
    source, expected = (FIXTURES / "trainers" / f"reshard-{name}-{ranks}" / "global_step2" for ranks in (2, 3))
    result = reshard(str(source), str(tmp_path / "out"), 3)
    assert result.digests == StoredCheckpoint(str(expected)).digests()
    names = {path.name for path in expected.iterdir()}
    assert {path.name for path in (tmp_path / "out").iterdir()} == names
    places = {path: difference(expected / path, tmp_path / "out" / path, name == "zero3") for path in names}
    if name == "zero2":
        places = {path: "" if "param_slice_mappings" in place else place for path, place in places.items()}
        masters = addressed(tmp_path / "out", 3)
        assert masters == weights(tmp_path / "out", masters)
    assert places == dict.fromkeys(names, "")


@pytest.mark.parametrize("ranks", [1, 3])
def test_the_same_checkpoint_is_the_same_bytes(tmp_path: Path, ranks: int) -> None:
    for name in ("one", "two"):
        reshard(str(ZERO1), str(tmp_path / name), ranks)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_digests_do_not_depend_on_how_it_is_divided(tmp_path: Path) -> None:
    """ZeRO 1 and 3 of the same training have the same numbers."""
    digests = [reshard(str(source), str(tmp_path / source.parent.name), 5).digests for source in (ZERO1, ZERO3)]
    assert digests[0] == digests[1]
    assert set(digests[0]) == {"fp32", "exp_avg", "exp_avg_sq"}


def changed(tmp_path: Path, source: Path) -> Path:
    """A copy of a checkpoint that may be changed."""
    shutil.copytree(source, tmp_path / "source")
    return tmp_path / "source"


def flip(path: Path, member: str) -> None:
    """Change a byte in the middle of a member."""
    archive = Archive(str(path))
    place = archive._place(member)
    data = bytearray(path.read_bytes())
    data[place.start + place.size // 2] ^= 1
    path.write_bytes(data)


RANK1 = "zero_pp_rank_1_mp_rank_00_optim_states.pt"


def damage_numbers(path: Path) -> None:
    flip(path / RANK1, "data/1")


def damage_model(path: Path) -> None:
    flip(path / "mp_rank_00_model_states.pt", "data/0")


def damage_pickle(path: Path) -> None:
    flip(path / RANK1, "data.pkl")


def remove(path: Path) -> None:
    (path / RANK1).unlink()


def truncate(path: Path) -> None:
    data = (path / RANK1).read_bytes()
    (path / RANK1).write_bytes(data[:-40])


def take_another_step(path: Path) -> None:
    shutil.copy(ZERO1.parent / "global_step2" / RANK1, path / RANK1)


def take_another_size(path: Path) -> None:
    shutil.copy(SOURCES["pythia-fp16-z1-dp2"] / RANK1, path / RANK1)


def add_expert(path: Path) -> None:
    shutil.copy(path / RANK1, path / "layer_0_expert_0_mp_rank_00_model_states.pt")


def make_universal(path: Path) -> None:
    (path / "zero").mkdir()
    (path / "zero" / "optimizer_state.pt").write_bytes(b"x")


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (damage_numbers, f"{RANK1}: data/1 is damaged: its CRC-32 is"),
        (damage_model, "mp_rank_00_model_states.pt: data/0 is damaged"),
        (damage_pickle, RANK1),
        (remove, f"{RANK1} is missing"),
        (truncate, f"{RANK1}"),
        (take_another_step, f"zero_pp_rank_0_mp_rank_00_optim_states.pt and {RANK1} differ in optimizer_state_dict."),
        (take_another_size, RANK1),
        (add_expert, "layer_0_expert_0_mp_rank_00_model_states.pt: experts are divided"),
        (make_universal, "zero/optimizer_state.pt: it was written by ds_to_universal"),
    ],
)
def test_a_broken_checkpoint_is_named_and_leaves_nothing(tmp_path: Path, break_it, message: str) -> None:
    source = changed(tmp_path, ZERO1)
    break_it(source)
    before = contents(source)
    with pytest.raises(ReshardError, match=message):
        reshard(str(source), str(tmp_path / "out"), 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]
    assert contents(source) == before


def test_what_is_there_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(ReshardError, match="out is there already"):
        reshard(str(ZERO1), str(tmp_path / "out"), 3)


def test_disk_that_is_too_small_is_named_before_writing(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 10, 10))
    with pytest.raises(ReshardError, match="10 bytes are free where it would be written"):
        reshard(str(ZERO1), str(tmp_path / "out"), 3)
    assert not list(tmp_path.iterdir())


def test_numbers_that_are_not_those_that_were_read_are_found(tmp_path: Path, monkeypatch) -> None:
    """A disk, or a fault of this program, that writes other numbers: every kind is compared."""
    compare, kinds = module._compare, set[str]()
    stored = Archive(str(ZERO1 / RANK1))
    tensors = [name for name in stored.names() if name.startswith("data/") and (stored.size(name) or 0) > 16]
    for member in tensors:

        def damaged(stored, written, ranks, member: str = member):
            flip(Path(written.directory, RANK1), member)
            return compare(stored, StoredCheckpoint(written.directory), ranks)

        monkeypatch.setattr(module, "_compare", damaged)
        with pytest.raises(ReshardError, match="that were written are not those that were read") as caught:
            reshard(str(ZERO1), str(tmp_path / "out"), 3)
        kinds.add(str(caught.value).partition("the numbers of ")[2].split()[0])
        assert not list(tmp_path.iterdir())
    assert kinds == {"fp32", "exp_avg", "exp_avg_sq"}


WAITS = """
import sys, time
sys.path[:0] = sys.argv[4:]
from midstream_host.driver.reshard.reshard import reshard
def wait(done, total):
    print(done, flush=True)
    time.sleep(60)
reshard(sys.argv[1], sys.argv[2], int(sys.argv[3]), wait)
"""


def test_a_killed_conversion_continues(tmp_path: Path) -> None:
    output = tmp_path / "out"
    command = [sys.executable, "-c", WAITS, str(ZERO1), str(output), "3", *filter(None, sys.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline().strip().isdigit()  # a file is there
        with pytest.raises(ReshardError, match="another process writes there"):
            reshard(str(ZERO1), str(output), 3)
        os.kill(child.pid, signal.SIGKILL)
    assert not output.exists()
    result = reshard(str(ZERO1), str(output), 3)
    assert result.continued >= 1
    reshard(str(ZERO1), str(tmp_path / "undisturbed"), 3)
    assert contents(output) == contents(tmp_path / "undisturbed")


def test_a_conversion_of_another_checkpoint_begins_again(tmp_path: Path) -> None:
    source = changed(tmp_path, ZERO1)
    reshard(str(source), str(tmp_path / "out"), 3)
    work = tmp_path / ".other.reshard"
    shutil.copytree(tmp_path / "out", work)
    state = {"files": [["something", 1, 1]], "ranks": 3}
    module.records.write_json(str(work / "reshard.json"), state)
    assert reshard(str(source), str(tmp_path / "other"), 3).continued == 0
    assert contents(tmp_path / "other") == contents(tmp_path / "out")


def test_a_finished_file_that_was_damaged_since_is_found(tmp_path: Path) -> None:
    stored = StoredCheckpoint(str(ZERO1))
    reshard(str(ZERO1), str(tmp_path / "done"), 3)
    work = tmp_path / ".out.reshard"
    shutil.copytree(tmp_path / "done", work)
    module.records.write_json(
        str(work / "reshard.json"), {"files": [list(mark) for mark in stored.signature], "ranks": 3}
    )
    flip(work / RANK1, "data/1")
    with pytest.raises(ReshardError, match=r"the numbers of .* that were written are not those that were read"):
        reshard(str(ZERO1), str(tmp_path / "out"), 3)
    assert reshard(str(ZERO1), str(tmp_path / "out"), 3).continued == 0


def test_latest_names_the_checkpoint(tmp_path: Path) -> None:
    assert tag_of(str(ZERO1.parent)) == str(ZERO1)
    assert tag_of(str(ZERO1)) == str(ZERO1)
    with pytest.raises(ReshardError, match="there is no such directory"):
        tag_of(str(tmp_path / "none"))
    (tmp_path / "latest").write_text("../elsewhere")
    with pytest.raises(ReshardError, match="which is not there"):
        tag_of(str(tmp_path))


def test_memory_is_bounded(tmp_path: Path, monkeypatch) -> None:
    """Numbers pass in blocks, whatever the size of a tensor."""
    monkeypatch.setattr("midstream_host.driver.reshard.segments.BLOCK", 16)
    result = reshard(str(ZERO1), str(tmp_path / "small"), 3)
    monkeypatch.undo()
    reshard(str(ZERO1), str(tmp_path / "large"), 3)
    assert contents(tmp_path / "small") == contents(tmp_path / "large")
    assert result.digests["fp32"] == StoredCheckpoint(str(ZERO1)).digests()["fp32"]


def test_masters_are_those_of_the_module(tmp_path: Path) -> None:
    """In float32 the masters, joined, are the weights that every rank has: an independent look at the order."""
    reshard(str(ZERO1), str(tmp_path / "out"), 3)
    model = Archive(str(ZERO1 / "mp_rank_00_model_states.pt"))
    module_state = pickle_tree.value_of(pickle_tree.parse(model.text("data.pkl")), "module")
    weights = b"".join(
        tensor_bytes(model, tensor)
        for tensor in (tensor_of(value) for _, value in pickle_tree.pairs_of(module_state) or [])
        if tensor is not None
    )
    assert hashlib.sha256(weights).hexdigest() == StoredCheckpoint(str(tmp_path / "out")).digests()["fp32"]
