"""`--migrate PATH --to TARGET`: import another trainer's checkpoint and migrate."""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml

from midstream.errors import MidstreamError
from midstream.flags import parse
from midstream.fleet.fleet_file import load_fleet
from midstream.headless.import_run import import_request_of
from midstream.headless.migration_request import is_path
from midstream.hosts.host_pool import HostPool
from midstream.operations.import_run import ImportedRun, import_run, run_id_of
from midstream.output import Output
from midstream_core import records
from simulators.object_stores.s3_server import s3_server
from simulators.sshd import Lab
from support.command_line import Run, midstream
from support.imports.neox_run import BATCH, SOURCE, STEP, write_run
from support.paths import FIXTURES

pytestmark = pytest.mark.drawn

LEVANTER = FIXTURES / "levanter" / "data"


@pytest.fixture
def import_and_migrate(lab: Lab, runs: Callable[..., Run]) -> Callable[..., Run]:
    """Import a checkpoint, migrate the run, and return it, finished on the target."""

    def call(source: Path, run_id: str, *engine: str, flags: tuple[str, ...] = ()) -> Run:
        here, there = lab.local("here", devices=1), lab.local("there", devices=2)
        fleet = lab.fleet_file(here=here, there=there)
        more = [*flags, *(["--", *engine] if engine else [])]
        moved = midstream(
            "--fleet", fleet, "--migrate", f"here:{source}", "--to", "there", "--certify-steps", "2",
            "--healthy-steps", "2", "--json", *more, timeout=280,
        )  # fmt: skip
        assert moved.code == 0, moved.stderr[-3000:]
        claims = {claim["name"]: claim["verdict"] for claim in moved.result["certificate"]["claims"]}
        assert claims == {
            "state": "verified",
            "data": "verified",
            "reference losses": "verified",
            "continuity": "not checked",
            "environment": "not checked",
        }
        assert records.Fence.read(runs(here.root, run_id).paths.fence).epoch == 2
        target = runs(there.root, run_id)
        target.wait(lambda run: (status := run.status()) is not None and status.state == "finished", "the end")
        return target

    return call


def assert_continues(target: Run, expected: Path, tolerance: float) -> None:
    """Assert that the losses from the imported step on equal the other trainer's."""
    losses = json.loads(expected.read_text())["losses"]
    found = target.spliced()
    np.testing.assert_allclose([found[STEP + n]["train/loss"] for n in range(len(losses))], losses, rtol=tolerance)


def test_import_of_neox_checkpoint_migrates(import_and_migrate: Callable[..., Run], tmp_path: Path) -> None:
    source = write_run(tmp_path)
    assert_continues(import_and_migrate(source, "pythia"), SOURCE / "expected.json", 1e-4)
    assert sorted(path.name for path in source.iterdir()) == sorted(path.name for path in SOURCE.iterdir())


@pytest.mark.slow  # a complete migration
def test_import_of_levanter_checkpoint_migrates_with_data(
    import_and_migrate: Callable[..., Run], tmp_path: Path
) -> None:
    """The configuration is not beside the checkpoint, and named with ``--config``."""
    config = levanter_with_config_elsewhere(tmp_path)
    target = import_and_migrate(tmp_path / "levanter" / "run", "run", flags=("--config", str(config)))
    assert_continues(target, LEVANTER / "run" / "expected.json", 1e-5)


def levanter_with_config_elsewhere(folder: Path) -> Path:
    """Copy a run of Levanter with data to ``folder``; return its YAML, which is in another directory."""
    shutil.copytree(LEVANTER, folder / "levanter")
    config = folder / "levanter" / "configs" / "train.yaml"
    config.parent.mkdir()
    (folder / "levanter" / "run" / "config.yaml").rename(config)
    return config


def test_import_with_config_uses_that_file(lab: Lab, runs: Callable[..., Run], tmp_path: Path) -> None:
    """The import itself, without the migration that follows."""
    here, there = lab.local("here", devices=1), lab.local("there", devices=2)
    config = levanter_with_config_elsewhere(tmp_path)
    source = tmp_path / "levanter" / "run"
    fleet = load_fleet(lab.fleet_file(here=here, there=there))
    words = ["--migrate", f"here:{source}", "--to", "there"]
    hosts = HostPool(fleet)
    messages = io.StringIO()
    output = Output(False, io.StringIO(), messages)
    try:
        options, engine = parse(words)
        with pytest.raises(MidstreamError, match=r"the run's configuration is missing .*name its YAML with --config"):
            import_run(hosts, import_request_of(options, engine), output.message)
        options, engine = parse([*words, "--config", str(config)])
        assert import_run(hosts, import_request_of(options, engine), output.message) == ImportedRun("run", "here")
    finally:
        hosts.close()
    imported = runs(here.root, "run")
    status = imported.status()
    assert status is not None
    assert (status.state, status.step, len(status.data_digests)) == (records.STOPPED, STEP, 1)
    expected = yaml.safe_load(config.read_text())["trainer"]["num_train_steps"]
    assert yaml.safe_load(Path(imported.paths.config).read_text())["trainer"]["num_train_steps"] == expected


def test_import_from_a_bucket_converts_on_the_named_host(
    lab: Lab, runs: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host that is named copies it, converts it and removes the copy; its data is on that host."""
    folder = write_run(tmp_path)
    with s3_server("my-bucket") as server:
        for path in (path for path in folder.rglob("*") if path.is_file()):
            server.put("my-bucket", f"lab/pythia/{path.relative_to(folder)}", path.read_bytes())
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        here, there = lab.local("here", devices=1), lab.local("there", devices=2)
        file = lab.fleet_file(here=here, there=there)
        words = ["--migrate", "here:s3://my-bucket/lab/pythia", "--to", "there"]
        dry = midstream("--fleet", file, *words, "--dry-run")
        assert dry.code == 0, dry.stderr
        assert "would import here:s3://my-bucket/lab/pythia as run pythia, then migrate it to there" in dry.stdout
        assert not (Path(here.root) / "imports").exists()
        hosts, output = HostPool(load_fleet(file)), Output(False, io.StringIO(), io.StringIO())
        try:
            options, engine = parse(words)
            assert import_run(hosts, import_request_of(options, engine), output.message) == ImportedRun(
                "pythia", "here"
            )
        finally:
            hosts.close()
    imported = runs(here.root, "pythia")
    status = imported.status()
    assert status is not None
    assert (status.state, status.step, len(status.data_digests)) == (records.STOPPED, STEP, 1)
    assert list((Path(here.root) / "imports").iterdir()) == []


@pytest.mark.slow  # a complete migration
def test_import_of_hugging_face_model_migrates_at_step_0(
    import_and_migrate: Callable[..., Run], tmp_path: Path
) -> None:
    """The run starts at step 0 with the flags' data and the model's tokenizer.

    The imported model itself gives the reference losses.
    """
    shutil.copytree(FIXTURES / "hf" / "llama3-tied", tmp_path / "tiny")
    shutil.copytree(LEVANTER / "tokenizer", tmp_path / "tiny", dirs_exist_ok=True)
    (tmp_path / "text.txt").write_text(" ".join(str(7 * number % 63) for number in range(3000)))
    target = import_and_migrate(
        tmp_path / "tiny", "tiny", "--data.train_urls", f"[{tmp_path}/text.txt]", "--data.eos_token", "<end>",
        "--trainer.num_train_steps", "8", "--trainer.train_batch_size", "4", flags=("--cast-parameters", "bfloat16"),
    )  # fmt: skip
    assert sorted(target.spliced())[0] == 0
    assert yaml.safe_load(Path(target.paths.config).read_text())["trainer"]["mp"] == "p=bfloat16,c=float32"
    tokenizer = yaml.safe_load(Path(target.paths.config).read_text())["data"]["tokenizer"]
    assert not Path(tokenizer.removeprefix(records.IMPORTED)).exists()  # where it was converted
    (digest,) = records.tokenizer_digests(tokenizer)
    copied = Path(target.paths.root, "data", digest, "tokenizer.json")
    assert copied.read_bytes() == (LEVANTER / "tokenizer" / "tokenizer.json").read_bytes()


def test_dry_run_of_an_import_prints_a_plan_and_writes_nothing(lab: Lab, tmp_path: Path) -> None:
    here, there = lab.local("here", devices=1), lab.local("there", devices=2)
    fleet, source = lab.fleet_file(here=here, there=there), write_run(tmp_path)
    state = Path(os.environ["MIDSTREAM_STATE"])
    before = everything(here.root), everything(there.root), everything(source), everything(state)
    flags = ["--fleet", fleet, "--migrate", f"here:{source}", "--to", "there", "--dry-run", "--"]
    flags += ["--trainer.per_device_parallelism", "5"]
    planned = midstream(*flags)
    assert planned.code == 0, planned.stderr
    lines = planned.stdout.splitlines()
    assert lines[0] == f"would import here:{source} as run pythia, then migrate it to there"
    for words in (
        f"run        pythia  step {STEP} (stopped)",
        f"batch      {BATCH} (unchanged)",
        "per device unknown -> 5",
        "accumulation unknown -> 3",
        "memory     ",
        "downtime   unknown: first step",
        "takes      at least ",
        "warning    the state of torch's random generators",
        f"same as    midstream --fleet {fleet} --migrate here:{source} --to there",
        "ok    disk",
    ):
        assert any(line.startswith(words) for line in lines), (words, planned.stdout)
    as_json = midstream(*flags[:-3], "--json")
    assert as_json.result["dry_run"] is True
    (plan,) = [event for event in as_json.events if event["event"] == "plan"]
    assert plan["shape"]["train_batch_size"] == BATCH
    data = sum(path.stat().st_size for path in tmp_path.iterdir() if path.suffix in (".bin", ".idx"))
    assert plan["estimate"]["data_bytes"] == data
    assert plan["estimate"]["duration"]["import"] is None
    assert (everything(here.root), everything(there.root), everything(source), everything(state)) == before
    missing = midstream("--fleet", fleet, "--migrate", "here:/nowhere/x", "--to", "there", "--dry-run")
    assert (missing.code, missing.stdout) == (3, "")
    assert "here: /nowhere/x cannot be read" in missing.stderr


def everything(directory: Path | str) -> list[tuple[str, int]]:
    return sorted((str(path), path.lstat().st_mtime_ns) for path in Path(directory).rglob("*"))


def test_config_goes_with_an_import_and_alone(lab: Lab, tmp_path: Path) -> None:
    here, there = lab.local("here", devices=1), lab.local("there", devices=2)
    fleet = lab.fleet_file(here=here, there=there)
    shutil.copytree(LEVANTER, tmp_path / "levanter")
    source = tmp_path / "levanter" / "run"
    importing = ["--fleet", fleet, "--migrate", f"here:{source}", "--to", "here"]
    importing[-1] = "there"
    config = f"{tmp_path}/run.yaml"
    lost = midstream(*importing, "--config", config, "--dry-run")
    assert (lost.code, lost.stdout) == (3, "")
    assert f"{config}: the run's configuration is missing: name its YAML with --config" in lost.stderr
    (source / "config.yaml").rename(config)
    dry = midstream(*importing, "--config", config, "--dry-run", "--json")
    assert dry.code == 0, dry.stderr
    assert json.loads(dry.stdout.splitlines()[0])["flags"] == ["--config", config]
    refused = midstream("--fleet", fleet, "--migrate", "a-run", "--to", "here", "--config", "x.yaml")
    assert refused.code == 2
    assert "a-run is a run, not the PATH of a checkpoint" in refused.stderr
    assert midstream("--fleet", fleet, "--config", "a-run", "--status").code == 2


def test_import_refuses_directory_without_checkpoint(lab: Lab, tmp_path: Path) -> None:
    here = lab.local("here", devices=1)
    fleet = lab.fleet_file(here=here)
    (tmp_path / "nothing").mkdir()
    refused = midstream("--fleet", fleet, "--migrate", f"here:{tmp_path}/nothing", "--to", "here")
    assert refused.code == 3
    assert "not a checkpoint of GPT-NeoX" in refused.stderr
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
def test_import_names_run_after_checkpoint(path: str, run_id: str) -> None:
    assert run_id_of(path) == run_id
    assert is_path(path)
    assert not is_path("run-1.a_b")
