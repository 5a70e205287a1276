"""`--compare` on a machine without accelerators: compiles for TPUs, refuses what does not fit, and caches."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from midstream.compare.compiler import BESIDE, engine_and_packages
from midstream.compare.estimate import Memory, StepEstimate, cache_file, store
from midstream_core import records
from midstream_core.accelerator_types import parse
from simulators.sshd import Lab
from support.command_line import midstream, refused
from support.paths import REPOSITORY
from support.run_directory import RunDirectory, row

LLAMA = REPOSITORY / "configs" / "llama_tiny.yaml"
without_compiler = pytest.mark.skipif(not BESIDE["tpu"].is_file(), reason="no compiler for TPUs: make compilers")


@pytest.mark.drawn
@without_compiler
def test_config_is_compared_on_a_machine_without_accelerators() -> None:
    # A device's share of 8192 examples needs 68 GB in one piece, of 16.
    flags = (
        "--model.num_layers", "1", "--model.seq_len", "1024", "--trainer.train_batch_size", "32768",
        "--trainer.mp", "p=f32,c=bfloat16",
    )  # fmt: skip
    command = ("--compare", LLAMA, "--with", "v5e-4", "--price", "v5e-4=4.8", "--json", "--", *flags)
    first = midstream(*command)
    assert first.code == 0, first.stderr
    assert "v5e-4" in first.stderr, "progress"
    (found,) = first.of("candidate")
    assert found["fits"]
    assert found["configured"] == 8192
    assert found["needed"] > 16 << 30
    assert 1 <= found["per_device_parallelism"] == found["largest"] < 8192
    assert found["per_device_parallelism"] * found["accumulation"] * 4 == 32768
    assert 0 < found["peak_memory"] < 16 << 30
    step, cost = found["step_seconds"], found["cost_to_end"]
    assert 0 < step["low"] < step["value"] < step["high"]
    assert found["tokens_per_second"] == pytest.approx(32768 * 1024 / step["value"])
    assert cost["value"] == pytest.approx(200 * step["value"] * 4.8 / 3600)
    assert first.result["best"] == "v5e-4"
    again = midstream(*command)
    assert again.of("candidate") == [found]
    assert "compiling" not in again.stderr, "an estimate is compiled once"
    table = midstream(*[word for word in command if word != "--json"])
    assert f"trainer.per_device_parallelism {found['largest']} fits" in table.stdout


@pytest.mark.drawn
@without_compiler
def test_compiles_on_a_host_over_ssh(lab: Lab) -> None:
    """The engine is installed there; its interpreter has the compiler beside it."""
    far = lab.host("far")
    command = ("--fleet", lab.fleet_file(far=far.config), "--compare", LLAMA, "--with", "v5e-1", "--compile-on", "far")
    done = midstream(*command, "--json", "--", "--model.num_layers", "1", "--trainer.train_batch_size", "4")
    assert done.code == 0, done.stderr
    (found,) = done.of("candidate")
    assert found["fits"]
    assert list(far.root.glob("engines/*")), "the engine is installed there"
    assert not list(far.root.glob(".estimate-*")), "nothing is left behind"


@pytest.mark.drawn
@pytest.mark.skipif(not BESIDE["cuda12"].is_file(), reason="no compiler for GPUs: make compilers-cuda")
def test_config_is_compared_with_a_gpu() -> None:
    flags = ("--model.num_layers", "1", "--trainer.mp", "p=f32,c=bfloat16")
    done = midstream("--compare", LLAMA, "--with", "h100x1", "--json", "--", *flags)
    assert done.code == 0, done.stderr
    (found,) = done.of("candidate")
    assert found["fits"]
    assert found["device_kind"] == "H100"
    assert 0 < found["peak_memory"] < 80 << 30
    assert 0 < found["step_seconds"]["low"] < found["step_seconds"]["value"] < found["step_seconds"]["high"]


RUN_YAML = """
data: {tokenizer: /not/here/tokenizer.json, train_urls: [a]}
model: {type: gpt2, seq_len: 32}
trainer: {train_batch_size: 64, num_train_steps: 1000}
"""
FLEET = """
hosts:
  lab: {{type: local, devices: 2, root: {root}, price_per_hour: 6.0}}
"""


def write_run(root: Path) -> RunDirectory:
    """Write a run that has trained 400 of 1000 steps at 5 s each, and whose vocabulary only its checkpoint has."""
    run = RunDirectory(root, "web")
    Path(run.paths.config).write_text(RUN_YAML)
    run.fence(1, "lab")
    run.lineage({"attempt": 1, "epoch": 1, "target": "lab"})
    records.Status(
        state=records.TRAINING, step=400, process=0, heartbeat=time.time(), run_id="web", attempt=1,
        num_train_steps=1000, devices=[{"kind": "TPU v5 lite"}] * 4, **records.this_process().to_json(),
    ).write(run.attempt(1).status(), durable=False)  # fmt: skip
    measured = {"throughput/duration": 5.0, "throughput/tokens_per_second": 400.0}
    rows = [{**row(step), **measured} for step in range(380, 400)]
    run.text(1, "".join(json.dumps(each) + "\n" for each in rows))
    name = run.checkpoint(400)
    path = Path(run.paths.checkpoint(name), records.MANIFEST)
    manifest = json.loads(path.read_text())
    manifest["arrays"] = [
        {"name": "model/embeddings", "axes": ["vocab", "embed"], "shape": [50304, 768], "dtype": "float32",
         "grid": [1, 1], "objects": ["a"]}
    ]  # fmt: skip
    path.write_text(json.dumps(manifest))
    Path(path.parent, records.TRAIN).write_text(json.dumps({"state": {"data_digest": "d" * 64}}))
    return run


def store_estimate(name: str, seconds: float) -> None:
    """Store what compiling the run for ``name`` would find."""
    accelerators = parse(name)
    assert accelerators is not None
    flags = ("--data.tokenizer", "ids:50304")
    found = StepEstimate(
        "estimate", name, True, True, 4, 8, None, 60.0, accelerators.devices, accelerators.kind, 16 << 30, 1, 1, 64,
        2048, 1000, 4, 1, Memory(8 << 30, 1, 1), seconds, seconds * 0.8, seconds * 1.2,
    )  # fmt: skip
    store(cache_file(engine_and_packages(), RUN_YAML, flags, accelerators), found)


def test_compared_run_has_its_migration_and_its_own_step_times(tmp_path: Path) -> None:
    root = tmp_path / "lab"
    write_run(root)
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(FLEET.format(root=root))
    store_estimate("v5e-4", 4.0)  # measured: 5 s
    store_estimate("v5e-16", 1.0)
    store_estimate("v5p-8", 2.0)
    store_estimate("v5e-8", 2.0)
    with_ = ("--with", "v5p-8,v5e-16,v5e-8", "--price", "v5p-8=12,v5e-16=3,v5e-8=30")
    done = midstream("--fleet", fleet, "--compare", "web", *with_, "--json")
    assert done.code == 0, done.stderr
    rows = {found["candidate"]: found for found in done.of("candidate")}
    assert list(rows) == ["v5e-16", "v5p-8", "v5e-8"], "the cheapest first"
    rented = rows["v5e-16"]
    assert rented["calibration"] == {"kind": "TPU v5 lite", "pairs": 1, "ratio": 1.25, "low": 1.25, "high": 1.25}
    assert rented["step_seconds"] == {"value": 1.25, "low": 1.0, "high": 1.5}
    assert rows["v5p-8"]["calibration"] is None, "measured on other devices"
    assert rows["v5p-8"]["step_seconds"]["value"] == 2.0
    assert rented["steps_left"] == 600
    assert rented["seconds_to_end"]["value"] == 750
    assert rented["migration_seconds"] > rented["downtime"] > 0
    # A step costs 5 s at 6 an hour now, and 1.25 s at 3 there.
    saved = 6.0 * 5 / 3600 - 3.0 * 1.25 / 3600
    assert rented["pays_after_steps"] == pytest.approx(rented["migration_cost"] / saved)
    assert rented["cost_to_end"]["value"] == pytest.approx(750 * 3 / 3600 + rented["migration_cost"])
    assert done.result["best"] == "v5e-16"
    (present,) = done.of("baseline")
    assert (present["target"], present["host"], present["devices"]) == ("lab", "lab", 4)
    assert present["step_seconds"] == {"value": 5.0, "low": 5.0, "high": 5.0}
    assert (present["tokens_per_second"], present["steps_left"]) == (400, 600)
    assert present["seconds_to_end"]["value"] == 3000
    assert present["cost_to_end"]["value"] == pytest.approx(5.0)
    table = midstream("--fleet", fleet, "--compare", "web", *with_).stdout
    assert table.splitlines()[1].split()[:3] == ["lab", "(measured)", "4"], "the run's own row is first"
    assert "PAYS AFTER" in table
    assert "TPU v5 lite: measured / estimated 1.25 in 1 earlier run (1.25 to 1.25)" in table


def test_wrong_input_is_one_line(tmp_path: Path) -> None:
    refused(midstream("--compare", LLAMA, "--with", "v5e-5"), 2, "there is no such slice; there are v5e-1, v5e-4")
    refused(midstream("--compare", LLAMA), 2, "--compare needs --with NAME[,NAME...]")
    refused(midstream("--compare", tmp_path / "no.yaml", "--with", "v5e-4"), 2, "No such file")
    refused(midstream("--compare", LLAMA, "--with", "v5e-4", "--compile-on", "nowhere"), 2, "no host 'nowhere'")
