"""`--reshard`: a checkpoint for another number of processes, on this machine and on a host."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from midstream_host.driver.reshard.checkpoint import StoredCheckpoint
from support.command_line import midstream, refused
from support.paths import TESTS

SOURCE = TESTS / "fixtures/trainers/deepspeed"


def test_checkpoint_is_written_for_three_processes(tmp_path: Path) -> None:
    output = tmp_path / "three"
    done = midstream("--reshard", SOURCE, "--processes", "3", "--output", output, "--json")
    assert done.code == 0, done.stderr
    result = done.result
    assert (result["step"], result["ranks_before"], result["ranks"], result["continued"]) == (4, 2, 3, 0)
    assert (output / "latest").read_text() == "global_step4"
    assert sorted(path.name for path in output.iterdir()) == ["global_step4", "latest"]
    assert StoredCheckpoint(str(output / "global_step4")).digests() == result["digests"]
    assert StoredCheckpoint(str(SOURCE / "global_step4")).digests() == result["digests"]
    refused(
        midstream("--reshard", SOURCE, "--processes", "3", "--output", output), 3, "is not empty", "a new directory"
    )


def test_checkpoint_of_a_host_stays_on_it(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(f'hosts:\n  here: {{type: local, devices: 1, root: "{tmp_path}/here"}}\n')
    command = ("--fleet", fleet, "--reshard", f"here:{SOURCE}/global_step2", "--processes", "1", "--output")
    done = midstream(*command, f"here:{tmp_path}/one", "--json")
    assert done.code == 0, done.stderr
    assert (tmp_path / "one" / "latest").read_text() == "global_step2"
    refused(midstream(*command, "there:/x"), 2, "is on another host than the checkpoint")
    refused(midstream(*command, "x"), 2, "--output x is relative")


@pytest.mark.parametrize(
    ("source", "processes", "code", "message"),
    [
        ("missing", "2", 2, "is not a directory of this machine"),
        ("empty", "2", 3, "it has no model_states.pt"),
        ("damaged", "3", 3, "zero_pp_rank_1_mp_rank_00_optim_states.pt is missing, the optimizer of a rank"),
        ("parallel", "6", 3, "the model is divided over 4 of them, so the number has to be a multiple"),
    ],
)
def test_bad_input_is_named_and_leaves_nothing(
    tmp_path: Path, source: str, processes: str, code: int, message: str
) -> None:
    (tmp_path / "empty").mkdir()
    shutil.copytree(SOURCE, tmp_path / "damaged")
    (tmp_path / "damaged/global_step4/zero_pp_rank_1_mp_rank_00_optim_states.pt").unlink()
    shutil.copytree(TESTS / "fixtures/neox/llama-bf16-z1-tp2-pp2-dp2", tmp_path / "parallel")
    ended = midstream("--reshard", tmp_path / source, "--processes", processes, "--output", tmp_path / "out")
    refused(ended, code, message)
    assert not (tmp_path / "out").exists()


def test_layout_of_neox_is_kept(tmp_path: Path) -> None:
    source = TESTS / "fixtures/neox/llama-bf16-z1-tp2-pp2-dp2"
    done = midstream("--reshard", source, "--processes", "4", "--output", tmp_path / "out", "--json")
    assert done.code == 0, done.stderr
    tag = tmp_path / "out" / "global_step3"
    names = {str(path.relative_to(tag)) for path in tag.rglob("*") if path.is_file()}
    before = source / "global_step3"
    expected = {str(path.relative_to(before)) for path in before.rglob("*") if path.is_file()}
    assert names == {name for name in expected if "zero_pp_rank_1" not in name}
    for name in names:
        if name.startswith(("layer_", "configs/")):
            assert (tag / name).read_bytes() == (before / name).read_bytes()
