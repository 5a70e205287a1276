"""benchmarks/aot.py --search: what it tries, keeps and prints, and that it continues."""

from __future__ import annotations

import importlib
import json
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import pytest
import yaml

from midstream_engine.compiled_program.topologies import tpu_library
from midstream_engine.computation.setup import make_plan
from midstream_engine.config import load_config
from support.paths import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "benchmarks"))
program_search: Any = importlib.import_module("steps.program_search")

NAME = {"model": "m", "topology": "t"}
REMAT, BLOCK = "model.gradient_checkpointing", "model.cross_entropy_block_size"
GRID = [[{REMAT: "attention"}, {REMAT: "qkv+attention"}], [{BLOCK: 128}, {BLOCK: 256}]]


class Compiler:
    """Seconds and memory by values: more that is stored is faster, and larger."""

    def __init__(self) -> None:
        self.requested: list[dict[str, Any]] = []

    def __call__(self, values: Mapping[str, Any]) -> dict[str, Any]:
        self.requested.append(dict(values))
        if values.get(BLOCK) == 128:
            return {"error": "does not divide"}
        stored = {"attention": 1, "qkv+attention": 2}.get(values.get(REMAT, ""), 0)
        seconds = 10.0 - stored - 0.5 * (values.get(BLOCK) == 256)
        return {"step_seconds": seconds, "cycles": 1.0, "arguments": 10, "temporary": 40 * stored}


def find(path: Path, compiler: Compiler, *, memory: float | None = None, budget: float = 1e9) -> Any:
    return program_search.search(path, NAME, GRID, compiler, memory=memory, budget=budget, say=lambda row: None)


def test_each_kind_is_tried_on_top_of_the_fastest(tmp_path: Path) -> None:
    compiler = Compiler()
    found = find(tmp_path / "file", compiler)
    assert found.values == {REMAT: "qkv+attention", BLOCK: 256}
    assert (found.row["step_seconds"], found.tried, found.left) == (7.5, 5, 0)
    assert compiler.requested[0] == {}
    assert all(each[REMAT] == "qkv+attention" for each in compiler.requested[3:])


def test_what_does_not_fit_the_memory_is_not_chosen(tmp_path: Path) -> None:
    assert find(tmp_path / "file", Compiler(), memory=80).values == {REMAT: "attention", BLOCK: 256}
    assert find(tmp_path / "other", Compiler(), memory=5) is None


def test_search_that_ended_continues_from_its_file(tmp_path: Path) -> None:
    path, second = tmp_path / "file", Compiler()
    assert find(path, Compiler(), budget=0) is None
    complete = find(path, Compiler())
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:2]) + lines[2][:20])  # killed while it wrote
    assert find(path, second) == complete
    assert len(second.requested) == 3
    assert len(program_search.rows_of(path)) == 5


def test_pasted_values_are_those_of_the_search(tmp_path: Path) -> None:
    values = {f"{program_search.COMPILER}xla_tpu_x": None, REMAT: "attention", program_search.MICRO_BATCH: 1, BLOCK: 8}
    content = yaml.safe_load((REPOSITORY / "configs" / "llama_tiny.yaml").read_text())
    for room, inner in yaml.safe_load(program_search.pasted(values)).items():
        content[room] |= inner
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(content))
    config = load_config(["--config_path", str(path)]).config
    assert config.trainer.compiler_options == {"xla_tpu_x": None}
    assert (config.model.gradient_checkpointing, config.model.cross_entropy_block_size) == ("attention", 8)
    assert config.trainer.per_device_parallelism == 1


def test_kinds_leave_out_what_the_configuration_has() -> None:
    config = load_config(["--config_path", str(REPOSITORY / "configs" / "llama_tiny.yaml")]).config
    remat, micro, compiler, loss = program_search.kinds(make_plan(config, jax.devices()[:2]), {})
    assert compiler == [], "a CPU has no options of its own"
    assert {REMAT: True} in remat
    assert {REMAT: False} not in remat
    assert micro == [{program_search.MICRO_BATCH: 2}]
    assert loss == [], "no block divides 32 positions"


@pytest.mark.drawn
@pytest.mark.skipif(tpu_library() is None, reason="no compiler for TPUs: make compilers")
def test_search_is_stopped_at_once_and_prints_what_it_has(tmp_path: Path) -> None:
    command = [
        sys.executable, str(REPOSITORY / "benchmarks" / "aot.py"), "--model", "llama-tiny", "--topology", "v5e:2x2",
        "--search", str(tmp_path / "file"), "--budget",
    ]  # fmt: skip
    with subprocess.Popen([*command, "500"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as first:
        assert first.stderr is not None
        said = next(json.loads(line) for line in first.stderr if line.startswith("{"))
        first.send_signal(signal.SIGINT)  # while it compiles the second program
        assert first.wait(timeout=60) == -signal.SIGINT
    done = subprocess.run([*command, "0"], capture_output=True, text=True, timeout=500, check=True)
    assert "# 1 programs; " in done.stdout
    assert done.stdout.startswith("# llama-tiny on v5e:2x2: ")
    (row,) = map(json.loads, (tmp_path / "file").read_text().splitlines())
    assert row == said
    assert row["values"] == {}
    assert row["cycles"] > 0
