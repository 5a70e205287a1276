"""`--migrate PATH --to TARGET`: another trainer's checkpoint becomes a run where it lies, and is moved like others."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml

from midstream.headless.import_run import is_path, run_id_of
from midstream_engine import records
from simulators.sshd import Lab
from support import neox_data
from support.command_line import Run, midstream

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


@pytest.fixture
def adopt(lab: Lab, runs) -> Callable[..., Run]:
    """Brings a checkpoint to another host: adopted, moved and certified. Returns the run there, when it has ended."""

    def call(source: Path, run_id: str, *engine: str) -> Run:
        here, there = lab.local("here", devices=1), lab.local("there", devices=2)
        fleet = lab.fleet_file(here=here, there=there)
        flags = ["--", *engine] if engine else []
        moved = midstream(
            "--fleet", fleet, "--migrate", f"here:{source}", "--to", "there", "--certify-steps", "2",
            "--healthy-steps", "2", "--json", *flags, timeout=280,
        )  # fmt: skip
        assert moved.code == 0, moved.stderr[-3000:]
        claims = {claim["name"]: claim["verdict"] for claim in moved.result["certificate"]["claims"]}
        assert claims == {
            "state": "verified",
            "data": "verified",
            "reference losses": "verified",
            "continuity": "not checked",
        }
        assert records.Fence.read(runs(here.root, run_id).paths.fence).epoch == 2
        target = runs(there.root, run_id)
        target.wait(lambda run: (status := run.status()) is not None and status.state == "finished", "the end")
        return target

    return call


def assert_goes_on(target: Run, expected: Path, tolerance: float):
    """The losses from the imported step on are those that the other trainer had (``expected``, its JSON)."""
    losses = json.loads(expected.read_text())["losses"]
    found = target.spliced()
    np.testing.assert_allclose([found[STEP + n]["train/loss"] for n in range(len(losses))], losses, rtol=tolerance)


def test_a_checkpoint_of_neox_is_adopted_and_moved(adopt: Callable[..., Run], tmp_path: Path):
    source = checkpoint(tmp_path)
    assert_goes_on(adopt(source, "pythia"), SOURCE / "expected.json", 1e-4)
    assert sorted(path.name for path in source.iterdir()) == sorted(path.name for path in SOURCE.iterdir())


@pytest.mark.slow  # a whole move
def test_a_checkpoint_of_levanter_is_adopted_with_its_data_and_moved(adopt: Callable[..., Run], tmp_path: Path):
    shutil.copytree(LEVANTER, tmp_path / "levanter")
    assert_goes_on(adopt(tmp_path / "levanter" / "run", "run"), LEVANTER / "run" / "expected.json", 1e-5)


@pytest.mark.slow  # a whole move
def test_a_model_of_hugging_faces_becomes_a_run_and_is_moved(adopt: Callable[..., Run], tmp_path: Path):
    """It begins where it lies, at step 0, with the data that the flags name; the witness is the model itself, and its
    tokenizer moves along."""
    shutil.copytree(FIXTURES / "hf" / "llama3-tied", tmp_path / "tiny")
    shutil.copytree(LEVANTER / "tokenizer", tmp_path / "tiny", dirs_exist_ok=True)
    (tmp_path / "text.txt").write_text(" ".join(str(7 * number % 63) for number in range(3000)))
    target = adopt(
        tmp_path / "tiny", "tiny", "--data.train_urls", f"[{tmp_path}/text.txt]", "--data.eos_token", "<end>",
        "--trainer.num_train_steps", "8", "--trainer.train_batch_size", "4",
    )  # fmt: skip
    assert sorted(target.spliced())[0] == 0
    named = yaml.safe_load(Path(target.paths.config).read_text())["data"]["tokenizer"]
    assert not Path(named.removeprefix(records.IMPORTED)).exists()  # where it was converted
    (digest,) = records.tokenizer_digests(named)
    carried = Path(target.paths.root, "data", digest, "tokenizer.json")
    assert carried.read_bytes() == (LEVANTER / "tokenizer" / "tokenizer.json").read_bytes()


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
