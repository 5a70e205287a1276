"""`--migrate PATH --to TARGET`: another trainer's checkpoint becomes a run where it lies, and is moved like others."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml

import neox_data
from lab.command_line import midstream
from lab.sshd import Lab
from midstream.headless.adopt import is_path, run_id_of
from midstream_engine import records

FIXTURES = Path(__file__).parent.parent / "fixtures"
SOURCE = FIXTURES / "neox" / "pythia-fp32-z1-dp2"
LEVANTER = FIXTURES / "levanter" / "data"
STEP, BATCH, UPDATES = 3, 30, 20


def checkpoint(folder: Path) -> Path:
    """A ``load:`` directory of NeoX's whose configuration says where its data lies."""
    shutil.copytree(SOURCE, folder / "pythia")
    tokens = np.asarray(json.loads((SOURCE / "expected.json").read_text())["tokens"], np.int64).reshape(-1, 13)
    rows = np.zeros(((UPDATES - STEP) * BATCH, 13), np.int64)
    rows[: len(tokens)] = tokens
    (path,) = (folder / "pythia" / "global_step3" / "configs").iterdir()
    config = yaml.safe_load(path.read_text())
    config["data-path"] = neox_data.write(folder / "text", rows, UPDATES * BATCH)
    path.write_text(yaml.safe_dump(config))
    return folder / "pythia"


def test_a_checkpoint_of_neox_is_adopted_and_moved(lab: Lab, runs, tmp_path: Path):
    here, there = lab.local("here", devices=1), lab.local("there", devices=2)
    fleet = lab.fleet_file(here=here, there=there)
    source = checkpoint(tmp_path)
    moved = midstream(
        "--fleet", fleet, "--migrate", f"here:{source}", "--to", "there", "--certify-steps", "2", "--healthy-steps",
        "2", "--json", timeout=280,
    )  # fmt: skip
    assert moved.code == 0, moved.stderr[-3000:]
    claims = {claim["name"]: claim["verdict"] for claim in moved.result["certificate"]["claims"]}
    assert claims == {"state": "proven", "data": "proven", "witness": "proven", "trajectory": "unwitnessed"}
    target = runs(there.root, "pythia")
    target.wait(lambda run: (status := run.status()) is not None and status.state == "finished", "the end")
    expected = json.loads((SOURCE / "expected.json").read_text())["losses"]
    found = target.spliced()
    np.testing.assert_allclose([found[STEP + n]["train/loss"] for n in range(len(expected))], expected, rtol=1e-4)
    assert sorted(path.name for path in source.iterdir()) == sorted(path.name for path in SOURCE.iterdir())
    assert records.Fence.read(runs(here.root, "pythia").paths.fence).epoch == 2


def test_a_checkpoint_of_levanter_is_adopted_with_its_data_and_moved(lab: Lab, runs, tmp_path: Path):
    here, there = lab.local("here", devices=1), lab.local("there", devices=2)
    fleet = lab.fleet_file(here=here, there=there)
    shutil.copytree(LEVANTER, tmp_path / "levanter")
    moved = midstream(
        "--fleet", fleet, "--migrate", f"here:{tmp_path}/levanter/run", "--to", "there", "--certify-steps", "2",
        "--healthy-steps", "2", "--json", timeout=280,
    )  # fmt: skip
    assert moved.code == 0, moved.stderr[-3000:]
    claims = {claim["name"]: claim["verdict"] for claim in moved.result["certificate"]["claims"]}
    assert claims == {"state": "proven", "data": "proven", "witness": "proven", "trajectory": "unwitnessed"}
    target = runs(there.root, "run")
    target.wait(lambda run: (status := run.status()) is not None and status.state == "finished", "the end")
    expected = json.loads((LEVANTER / "run" / "expected.json").read_text())["losses"]
    found = target.spliced()
    np.testing.assert_allclose([found[STEP + n]["train/loss"] for n in range(len(expected))], expected, rtol=1e-5)


def test_a_model_of_hugging_faces_becomes_a_run_and_is_moved(lab: Lab, runs, tmp_path: Path):
    """It begins where it lies, at step 0, with the data that the flags name; the witness is the model itself."""
    here, there = lab.local("here", devices=1), lab.local("there", devices=2)
    fleet = lab.fleet_file(here=here, there=there)
    shutil.copytree(FIXTURES / "hf" / "llama3-tied", tmp_path / "tiny")
    (tmp_path / "text.txt").write_text(" ".join(str(7 * number % 63) for number in range(3000)))
    moved = midstream(
        "--fleet", fleet, "--migrate", f"here:{tmp_path}/tiny", "--to", "there", "--certify-steps", "2",
        "--healthy-steps", "2", "--json", "--", "--data.train_urls", f"[{tmp_path}/text.txt]",
        "--data.tokenizer", str(LEVANTER / "tokenizer"), "--data.eos_token", "<end>",
        "--trainer.num_train_steps", "8", "--trainer.train_batch_size", "4", timeout=280,
    )  # fmt: skip
    assert moved.code == 0, moved.stderr[-3000:]
    claims = {claim["name"]: claim["verdict"] for claim in moved.result["certificate"]["claims"]}
    assert claims == {"state": "proven", "data": "proven", "witness": "proven", "trajectory": "unwitnessed"}
    target = runs(there.root, "tiny")
    target.wait(lambda run: (status := run.status()) is not None and status.state == "finished", "the end")
    assert sorted(target.spliced())[0] == 0


def test_a_place_that_is_no_checkpoint_is_refused(lab: Lab, tmp_path: Path):
    here = lab.local("here", devices=1)
    fleet = lab.fleet_file(here=here)
    (tmp_path / "nothing").mkdir()
    refused = midstream("--fleet", fleet, "--migrate", f"here:{tmp_path}/nothing", "--to", "here")
    assert refused.code == 3
    assert "no checkpoint that is known" in refused.stderr
    assert midstream("--fleet", fleet, "--migrate", "nowhere:/x", "--to", "here").code == 2
    assert not (Path(here.root) / "runs" / "nothing").exists()


@pytest.mark.parametrize(
    ("path", "run_id"),
    [
        ("/data/pythia/checkpoints/global_step1000", "pythia"),
        ("/data/pythia 1B/", "pythia-1B"),
        ("~/step-10", "step-10"),
        ("/", "imported"),
    ],
)
def test_a_run_is_called_like_its_checkpoint(path: str, run_id: str):
    assert run_id_of(path) == run_id
    assert is_path(path)
    assert not is_path("run-1.a_b")
