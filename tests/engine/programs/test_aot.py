"""benchmarks/aot.py: its table on a tiny model, the shape that other trainers get, and the sets of --search."""

from __future__ import annotations

import importlib
import importlib.util
import json
import subprocess
import sys
from types import ModuleType
from typing import Any

import jax
import pytest

from midstream_core.accelerator_types import parse
from midstream_engine.compiled_program.collectives import ALL_GATHER, ALL_REDUCE, Collective
from midstream_engine.compiled_program.topologies import tpu_library
from midstream_engine.computation.setup import make_plan
from support.paths import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "benchmarks"))
exposed_collectives: Any = importlib.import_module("steps.exposed_collectives")

SCRIPT = REPOSITORY / "benchmarks" / "aot.py"


@pytest.fixture(scope="module")
def aot() -> ModuleType:
    spec = importlib.util.spec_from_file_location("aot", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", list(sys.path))
        patch.setenv("JAX_PLATFORMS", "cpu")
        spec.loader.exec_module(module)
    return module


def run(*flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *flags], capture_output=True, text=True, timeout=500, check=False
    )


@pytest.mark.drawn
@pytest.mark.skipif(tpu_library() is None, reason="no compiler for TPUs: make compilers")
def test_table_of_a_tiny_model_for_tpus() -> None:
    done = run("--model", "llama-tiny", "--topology", "v5e:2x2", "--json")
    assert done.returncode == 0, done.stderr
    (found,) = map(json.loads, done.stdout.splitlines())
    assert (found["by"], found["devices"], found["topology"]) == ("midstream", 4, "v5e:2x2")
    assert found["ideal_bytes"] == 3 * found["micro_batches"] * found["parameters"] * 2 * 3 / 4
    assert 0 < found["exposed_bytes"] <= found["collective_bytes"] == sum(found["by_kind"].values())
    assert found["collective_bytes"] < 1.5 * found["ideal_bytes"]
    assert sum(one["bytes"] for one in found["exposed"]) == pytest.approx(found["exposed_bytes"])
    assert found["cycles"] > 0
    assert 0 < found["arguments"] < found["peak"]


def test_other_trainers_get_the_shape_of_the_plan(aot: ModuleType) -> None:
    plan = make_plan(aot.configuration("llama-1b"), jax.devices()[:4])
    assert aot.shape_of(plan) == {
        "kind": "llama", "vocab": 128256, "seq_len": 4096, "hidden": 2048, "layers": 16, "heads": 32, "kv_heads": 8,
        "mlp": 8192, "batch": 256, "compute": "bfloat16", "remat": True,
    }  # fmt: skip
    assert (plan.cut.micro, plan.cut.size // plan.layout.batch_shards) == (16, 4)


@pytest.mark.parametrize(
    ("topology", "name"), [("v5e:4x4", "v5e-16"), ("v5p:2x2x2", "v5p-16"), ("tpu7x:2x2x1", "tpu7x-8")]
)
def test_slices_have_the_names_that_are_rented(aot: ModuleType, topology: str, name: str) -> None:
    assert aot.rented_name(parse(topology)) == name


def test_rows_without_an_estimate_say_so(aot: ModuleType) -> None:
    found: dict[str, Any] = {
        "by": "levanter", "model": "llama-1b", "topology": "v5e:4x4", "options": {}, "arguments": 1 << 30,
        "temporary": 2 << 30, "peak": 3 << 30, "collective_bytes": 3e9, "exposed_bytes": 1e9, "ideal_bytes": 2e9,
        "cycles": 5e9, "step_seconds": None,
    }  # fmt: skip
    assert aot.row(found) == (
        "| levanter | llama-1b | v5e:4x4 | - | 1.00 / 2.00 / 3.00 | 3.0 | 1.0 | 2.0 | 1.50 | 5.00 G | - |"
    )
    assert aot.row(found).count("|") == aot.HEAD.count("|")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--peer", "nobody=python"], "--peer nobody: write one of levanter, maxtext"),
        (["--option", "x"], "--option x: write NAME=VALUE"),
        (["--set", "model.seq_len=x"], "aot.py: --model.seq_len: Couldn't parse 'x' into an int"),
        (["--topology", "v9:2x2"], "aot.py: v9:2x2: no such TPU topology" if tpu_library() else "is not installed"),
    ],
)
def test_wrong_flags_are_one_line(flags: list[str], message: str) -> None:
    done = run(*flags)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_exposed_collectives_are_summed_by_kind_and_array(aot: ModuleType) -> None:
    def one(kind: str, shape: tuple[int, ...], nbytes: float, *, exposed: bool = True) -> Collective:
        return Collective(kind, ("f32", "bf16"), ((2,), shape), 4, 2.0, nbytes, exposed, "")

    found = exposed_collectives.exposed([
        one(ALL_GATHER, (8, 64), 1e9), one(ALL_GATHER, (8, 64), 2e9), one(ALL_REDUCE, (8, 64), 4e9),
        one(ALL_GATHER, (9, 64), 5e9, exposed=False), one(ALL_REDUCE, (3,), 1e6), one(ALL_REDUCE, (4,), 2e6),
    ])  # fmt: skip
    assert found == [
        {"kind": ALL_REDUCE, "array": "bf16[8,64]", "runs": 2, "bytes": 4e9},
        {"kind": ALL_GATHER, "array": "bf16[8,64]", "runs": 4, "bytes": 3e9},
        {"kind": "others", "array": "-", "runs": 4, "bytes": 3e6},
    ]
    rows = aot.exposed_rows({"by": "midstream", "model": "llama-1b", "topology": "v5e:4x4", "exposed": found[:1]})
    assert rows == ["| midstream | llama-1b | v5e:4x4 | all-reduce | bf16[8,64] | 2 | 4.00 |"]
