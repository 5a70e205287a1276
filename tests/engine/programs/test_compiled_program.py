"""The text of compiled programs: collectives and their bytes, and those of the train step compiled for TPUs."""

from __future__ import annotations

import base64
import json
import math
import os
import re
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from midstream_engine.compiled_program.collectives import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    REDUCE_SCATTER,
    by_kind,
    collectives,
    total_bytes,
)
from midstream_engine.compiled_program.gpu_topologies import (
    cudnn_number,
    describe_gpus,
    gpu_compiler,
    gpu_devices,
    names_gpus,
)
from midstream_engine.compiled_program.hlo_text import computations, estimated_cycles, run_counts
from midstream_engine.compiled_program.topologies import tpu_devices, tpu_library
from midstream_engine.config import ConfigError
from support.paths import CONFIGS

# Loops in a loop, of 3 and 4 turns (the inner one counts by 2); names and attributes are those of a program for v5e.
LOOPS = """
HloModule jit_step, is_scheduled=true

%add (a: f32[], b: f32[]) -> f32[] {
  ROOT %sum = f32[] add(%a, %b)
}

%all-reduce-scatter.1 (input: bf16[64,8]) -> bf16[16,8] {
  %input = bf16[64,8]{1,0} parameter(0)
  %all-reduce.1 = bf16[64,8]{1,0} all-reduce(%input), channel_id=1, replica_groups={{0,1,2,3}}, to_apply=%add
  ROOT %slice = bf16[16,8]{1,0} dynamic-slice(%all-reduce.1), dynamic_slice_sizes={16,8}
}

%moves (part: bf16[16,8]) -> bf16[64,8] {
  %part = bf16[16,8]{1,0} parameter(0)
  ROOT %all-gather.1 = bf16[64,8]{1,0} all-gather(%part), channel_id=2, replica_groups=mesh['a'=4,'b'=1] {'a'}, \
frontend_attributes={chain_id="0"}
}

%multiplies (part: bf16[16,8]) -> (bf16[64,8], f32[8,8]) {
  %part = bf16[16,8]{1,0} parameter(0)
  %all-gather.2 = bf16[64,8]{1,0} all-gather(%part), channel_id=2, replica_groups=mesh['a'=4,'b'=1] {'a'}, \
frontend_attributes={chain_id="0"}
  %product = f32[8,8]{1,0} dot(%part, %part), lhs_contracting_dims={0}
  ROOT %both = (bf16[64,8]{1,0}, f32[8,8]{1,0}) tuple(%all-gather.2, %product)
}

%inner_condition (state: (s32[], bf16[16,8])) -> pred[] {
  %limit = s32[] constant(8)
  %count = s32[] get-tuple-element(%state), index=0
  ROOT %less = pred[] compare(%count, %limit), direction=LT
}

%inner (state: (s32[], bf16[16,8])) -> (s32[], bf16[16,8]) {
  %two = s32[] constant(2)
  %before = s32[] get-tuple-element(%state), index=0
  %count = s32[] add(%before, %two), metadata={op_name="while"}
  %first = bf16[64,8]{1,0} fusion(%part), kind=kCustom, calls=%moves
  %second = (bf16[64,8]{1,0}, f32[8,8]{1,0}) fusion(%part), kind=kOutput, calls=%multiplies
  %kernel = f32[8] custom-call(%part), custom_call_target="tpu_custom_call", literal={{
0, 1
}}, metadata={op_name="kernel"}, backend_config={"estimated_cycles":"100"}
  ROOT %next = (s32[], bf16[16,8]{1,0}) tuple(%count, %part)
}

%outer (state: (s32[], bf16[16,8])) -> (s32[], bf16[16,8]) {
  %loop = (s32[], bf16[16,8]{1,0}) while(%state), condition=%inner_condition, body=%inner
  %share = bf16[16,8]{1,0} fusion(%gradient), kind=kCustom, calls=%all-reduce-scatter.1
  ROOT %next = (s32[], bf16[16,8]{1,0}) tuple(%count, %share)
}

ENTRY %main (x: bf16[16,8]) -> f32[] {
  %loops = (s32[], bf16[16,8]{1,0}) while(%start), condition=%any, body=%outer, \
backend_config={"known_trip_count":{"n":"3"}}
  %gather-start = (bf16[16,8]{1,0}, bf16[64,8]{1,0}) all-gather-start(%x), channel_id=3, replica_groups=[1,4]<=[4]
  %work = f32[8,8]{1,0} fusion(%y), kind=kLoop, calls=%add
  %gather-done = bf16[64,8]{1,0} all-gather-done(%gather-start)
  %pass-start = (bf16[16,8]{1,0}, bf16[16,8]{1,0}, u32[], u32[]) collective-permute-start(%x), channel_id=6, \
source_target_pairs={{0,1},{1,2},{2,3},{3,0}}
  %pass-done = bf16[16,8]{1,0} collective-permute-done(%pass-start)
  %sum-start = f32[100]{0} all-reduce-start(%z), channel_id=4, replica_groups={{0,1},{2,3}}, to_apply=%add
  %sum-done = f32[100]{0} all-reduce-done(%sum-start)
  %alone = f32[100]{0} all-reduce(%z), channel_id=5, replica_groups={{0},{1},{2},{3}}, to_apply=%add
  ROOT %result = f32[] constant(0)
}
"""


def test_collectives_count_the_turns_of_loops_and_steps_once() -> None:
    counts = run_counts(computations(LOOPS))
    assert (counts["outer"], counts["inner"], counts["all-reduce-scatter.1"]) == (3, 12, 3)
    unsigned = LOOPS.replace("%limit = s32[]", "%limit = u32[]")  # of windowed einsums
    assert run_counts(computations(unsigned)) == counts
    found = {one.kind + str(one.times): one for one in collectives(LOOPS)}
    array = 64 * 8 * 2
    assert {name: one.nbytes for name, one in found.items()} == {
        "reduce-scatter3.0": 3 * array * 3 / 4,
        "all-gather12.0": 12 * array * 3 / 4,  # one collective in two steps
        "all-gather1.0": array * 3 / 4,
        "all-reduce1.0": 2 * 100 * 4 / 2,  # in groups of two
        "collective-permute1.0": 16 * 8 * 2,
    }
    assert {name for name, one in found.items() if one.exposed} == {
        "reduce-scatter3.0", "all-reduce1.0", "collective-permute1.0",
    }  # fmt: skip


def test_cycles_count_the_turns_of_loops() -> None:
    assert estimated_cycles(computations(LOOPS)) == 12 * 100
    unknown = LOOPS.replace('"estimated_cycles":"100"', '"estimated_cycles":"9223372036854775807"')
    assert estimated_cycles(computations(unknown)) == 0


ASIDE = """
HloModule jit_step, is_scheduled=true

%aside (x: bf16[16,8]) -> bf16[64,8] {
  %x = bf16[16,8]{1,0} parameter(0)
  ROOT %gather = bf16[64,8]{1,0} all-gather(%x), channel_id=1, replica_groups=[1,4]<=[4], dimensions={0}
}

ENTRY %main (x: bf16[16,8]) -> bf16[64,8] {
  %start = ((bf16[16,8], token[]), bf16[64,8]) call-start(%x), async_execution_thread="sparsecore", to_apply=%aside
  %work = f32[8,8]{1,0} fusion(%y), kind=kLoop, calls=%unknown
  ROOT %call-done = bf16[64,8]{1,0} call-done(%start)
}
"""


def test_collective_on_its_own_core_is_hidden_by_other_work() -> None:
    (found,) = collectives(ASIDE)
    assert (found.kind, found.nbytes, found.exposed) == (ALL_GATHER, 64 * 8 * 2 * 3 / 4, False)
    (found,) = collectives(ASIDE.replace(" fusion(%y)", " copy(%y)"))
    assert found.exposed


def test_loop_without_a_known_end_is_an_error() -> None:
    with pytest.raises(ValueError, match="the turns of the loop loop are not in the program's text"):
        run_counts(computations(LOOPS.replace("%limit = s32[] constant(8)", "%limit = s32[] parameter(0)")))
    with pytest.raises(ValueError, match="no entry"):
        run_counts(computations("HloModule empty"))


def test_loop_without_a_known_end_counts_where_it_matters() -> None:
    endless = LOOPS.replace("%limit = s32[] constant(8)", "%limit = s32[] parameter(0)")
    assert math.isnan(run_counts(computations(endless), unknown=math.nan)["inner"])
    with pytest.raises(ValueError, match=r"the turns of the loop of all-gather.1 are not in the program's text"):
        collectives(endless)
    with pytest.raises(ValueError, match="the turns of a loop, whose cycles count, are not in the program's text"):
        estimated_cycles(computations(endless))
    plain = endless.replace(" all-gather(%part)", " copy(%part)").replace("estimated_cycles", "unused")
    assert {one.kind for one in collectives(plain)} >= {ALL_GATHER, REDUCE_SCATTER}
    assert estimated_cycles(computations(plain)) == 0


def test_bytes_of_a_real_program() -> None:
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    sharded = NamedSharding(mesh, PartitionSpec("data"))

    def step(weight: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        def turn(carry: tuple[jax.Array, jax.Array], row: jax.Array) -> tuple[tuple[jax.Array, jax.Array], None]:
            share, total = carry
            complete = jax.lax.with_sharding_constraint(share, NamedSharding(mesh, PartitionSpec()))
            share = jax.lax.with_sharding_constraint(jnp.cos(share) + row, sharded)
            return (share, total + jnp.sum(jnp.sin(complete @ row))), None

        (_, total), _ = jax.lax.scan(turn, (weight, jnp.zeros(())), x)

        def scatter(parts: jax.Array) -> jax.Array:
            return jax.lax.psum_scatter(parts[0], "data", tiled=True)

        gradient = jax.shard_map(
            scatter, mesh=mesh, in_specs=PartitionSpec("data"), out_specs=PartitionSpec("data"), check_vma=False
        )(jnp.ones((8, 64)) * total)
        return total, gradient

    weight = jax.ShapeDtypeStruct((64, 32), jnp.float32, sharding=sharded)
    x = jax.ShapeDtypeStruct((5, 32), jnp.float32, sharding=NamedSharding(mesh, PartitionSpec()))
    text = jax.jit(step).lower(weight, x).compile().as_text()
    assert text is not None
    found = collectives(text)
    sent = by_kind(found)
    assert sent[ALL_GATHER] == 5 * 64 * 32 * 4 * 7 / 8
    assert sent[REDUCE_SCATTER] == 64 * 4 * 7 / 8
    assert total_bytes(found) == sum(sent.values())


def test_unknown_topology_and_missing_compiler_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    if tpu_library() is None:
        with pytest.raises(ConfigError, match="the compiler for TPUs is not installed: make compilers"):
            tpu_devices("v5e:2x2")
        return
    with pytest.raises(ConfigError, match="no such TPU topology"):
        tpu_devices("v9:2x2")


def test_collective_start_counts_results_and_hides_behind_arrays() -> None:
    """The forms of programs for GPUs."""
    lines = """
HloModule jit_step, is_scheduled=true

ENTRY %main (x: bf16[64,8]) -> f32[] {
  %scatter-start = ((bf16[64,8]{1,0}, f32[64]{0}), (bf16[16,8]{1,0}, f32[16]{0})) reduce-scatter-start(%x, %y), \
channel_id=1, replica_groups=[1,4]<=[4], dimensions={0}, to_apply=%add
  %counter = s32[] fusion(%count), kind=kLoop, calls=%one
  %vector = f32[16]{0} fusion(%v), kind=kLoop, calls=%one
  %scatter-done = (bf16[16,8]{1,0}, f32[16]{0}) reduce-scatter-done(%scatter-start)
  %swap-start = ((bf16[4,8]{1,0}), bf16[4,8]{1,0}) all-to-all-start(%z), channel_id=2, replica_groups=[1,4]<=[4]
  %work = f32[8,8]{1,0} fusion(%w), kind=kLoop, calls=%one
  %swap-done = bf16[4,8]{1,0} all-to-all-done(%swap-start)
  ROOT %result = f32[] constant(0)
}
"""
    found = {one.kind: one for one in collectives(lines)}
    assert found[REDUCE_SCATTER].nbytes == (64 * 8 * 2 + 64 * 4) * 3 / 4
    assert found[REDUCE_SCATTER].exposed, "the device counts, and computes a vector"
    assert found[ALL_TO_ALL].nbytes == 4 * 8 * 2 * 3 / 4
    assert not found[ALL_TO_ALL].exposed


def test_unknown_gpus_and_missing_compiler_are_errors() -> None:
    for name in ("h100", "h100x0", "h100x12", "rtx9000x8", "v5e:4x4"):
        with pytest.raises(ConfigError, match=f"{name}: no such GPUs; write one of a100-40, a100-80, h100, h200"):
            gpu_devices(name)
    assert names_gpus("h100x8")
    assert not names_gpus("v5e:4x4")
    if gpu_compiler() is None:
        with pytest.raises(ConfigError, match="the compiler for GPUs is not installed: make compilers-cuda"):
            gpu_devices("h100x8")


def test_gpus_are_described_for_processes_without_the_engine() -> None:
    sixteen = describe_gpus("h100x16")
    assert sixteen.topology == "1x2x8", "hosts of eight"
    assert 'device_description_str: "NVIDIA H100 80GB HBM3"' in sixteen.target_config
    major, rest = divmod(cudnn_number(), 10_000)
    assert f"dnn_version_info {{ major: {major} minor: {rest // 100} patch: {rest % 100} }}" in sixteen.target_config


STEP = """
import json, re, sys
from midstream_engine.compiled_program.collectives import collectives
from midstream_engine.compiled_program.gpu_topologies import gpu_devices, names_gpus
from midstream_engine.compiled_program.hlo_text import computations, estimated_cycles, run_counts
from midstream_engine.compiled_program.topologies import tpu_devices
from midstream_engine.config import load_config
from midstream_engine.trainer.computation.programs import compile_evaluation_step, compile_step
from midstream_engine.trainer.computation.setup import make_plan

MADE = {"step": compile_step, "evaluation": compile_evaluation_step}
for topology, made in [(one, made) for one in sys.argv[1].split(",") for made in sys.argv[2].split(",")]:
    devices = gpu_devices(topology) if names_gpus(topology) else tpu_devices(topology)
    plan = make_plan(load_config(sys.argv[3:]).config, devices)
    compiled = MADE[made](plan)
    text = compiled.as_text()
    program = computations(text)
    runs = run_counts(program)
    fused = {name for each in program.values() for one in each.instructions if one.operation == "fusion"
             for name in one.called.values()}
    written = [one for name, each in program.items() if runs[name] and name not in fused for one in each.instructions]
    print(json.dumps({
        "devices": plan.layout.mesh.size,
        "parameters": plan.parameters,
        "collectives": [{**vars(one)} for one in collectives(text)],
        "arrays": [[dtype, shape] for one in written for dtype, shape in one.shapes],
        "kernels": [one.text.partition('custom_call_target="')[2].partition('"')[0] for one in written
                    if one.operation == "custom-call"],
        "order": [[one.operation for one in each.instructions if one.operation in ("while", "reduce-scatter")]
                  for name, each in program.items() if runs[name]],
        "products": [one.text for each in program.values() for one in each.instructions
                     if one.operation in ("dot", "convolution") or "__cublas" in one.text],
        "bodies": [match[1] for each in program.values() for one in each.instructions
                   if one.operation == "custom-call" for match in [re.search('"body":"([^"]+)"', one.text)] if match],
        "narrow": sorted({dtype for dtype in ("bf16", "f16") if f" {dtype}[" in text}),
        "temporary": compiled.memory_analysis().temp_size_in_bytes,
    }))
"""
FLAGS = (
    "--model.num_layers", "1", "--model.cross_entropy_block_size", "8",
    "--trainer.per_device_parallelism", "1", "--trainer.mp", "p=f32,c=bfloat16",
)  # fmt: skip


def compiled_steps(topologies: str, *flags: str, made: str = "step") -> list[dict[str, Any]]:
    """Contents of the programs of the tiny model for ``topologies``: of each, the step or what ``made`` names."""
    done = subprocess.run(
        [sys.executable, "-c", STEP, topologies, made, "--config_path", str(CONFIGS / "llama_tiny.yaml"), *FLAGS,
         *flags],
        env={**os.environ, "JAX_PLATFORMS": "cpu"}, capture_output=True, text=True, timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def moved_head(found: dict[str, Any], vocab: int, width: int, *kinds: str) -> list[dict[str, Any]]:
    """The collectives of the tied head, or of a device's share of it."""
    shapes = [sorted(shape) for shape in ((vocab, width), (vocab, width // found["devices"]))]
    return [one for one in found["collectives"]
            if one["kind"] in kinds and any(sorted(shape) in shapes for shape in one["shapes"])]  # fmt: skip


def logits(found: dict[str, Any], vocab: int, positions: int) -> list[Any]:
    """The float32 arrays with the logits of a block of so many positions."""
    arrays = [shape for dtype, shape in found["arrays"] if dtype == "f32" and shape[-1:] == [vocab]]
    return [shape for shape in arrays if math.prod(shape[:-1]) == positions]


@pytest.mark.drawn
@pytest.mark.skipif(tpu_library() is None, reason="no compiler for TPUs: make compilers")
def test_step_for_tpu_gathers_head_once_and_writes_no_logits() -> None:
    found, evaluation = compiled_steps("v5e:2x2", made="step,evaluation")
    micro = 2
    gathers = moved_head(found, 320, 64, ALL_GATHER)
    sums = moved_head(found, 320, 64, ALL_REDUCE, REDUCE_SCATTER)
    assert sum(one["times"] for one in gathers) <= micro, "not by each block"
    assert sum(one["times"] for one in sums) == micro
    assert {dtype for one in gathers + sums for dtype in one["dtypes"]} == {"bf16"}
    assert not logits(found, 320, 8)
    evaluated = moved_head(evaluation, 320, 64, ALL_GATHER)
    assert sum(one["times"] for one in evaluated) <= 1, "not by each block"
    assert {dtype for one in evaluated for dtype in one["dtypes"]} == {"bf16"}
    assert not logits(evaluation, 320, 8)


@pytest.mark.drawn
@pytest.mark.skipif(tpu_library() is None, reason="no compiler for TPUs: make compilers")
def test_step_for_tpu_sums_in_float32_and_gathers_in_bfloat16() -> None:
    [found] = compiled_steps("v5e:2x2", "--trainer.gradient_reduce_dtype", "float32")
    matrices = [one for one in found["collectives"] if max(map(math.prod, one["shapes"])) >= 64 * 64]
    dtypes = {kind: {dtype for one in matrices if one["kind"] == kind for dtype in one["dtypes"]}
              for kind in (ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER)}  # fmt: skip
    assert dtypes[ALL_GATHER] == {"bf16"}
    assert dtypes[REDUCE_SCATTER] | dtypes[ALL_REDUCE] == {"f32"}


@pytest.mark.drawn
@pytest.mark.skipif(tpu_library() is None, reason="no compiler for TPUs: make compilers")
def test_step_for_tpu_sums_the_head_before_the_layers() -> None:
    """All phases come before the layers' backward pass, which then has a device's share alone in memory."""
    [found] = compiled_steps("v5p:2x2x2", "--model.num_layers", "3", "--trainer.train_batch_size", "16")
    forward, blocks, backward = ["while"] * 3
    assert [forward, blocks, *["reduce-scatter"] * 3, backward] in found["order"]


@pytest.mark.drawn
@pytest.mark.skipif(gpu_compiler() is None, reason="no compiler for GPUs: make compilers-cuda")
def test_gpu_step_gathers_head_once_and_writes_no_position_pairs() -> None:
    alone, eight = compiled_steps("h100x1,h100x8", "--model.seq_len", "48")
    assert not alone["collectives"]
    for found in (alone, eight):
        assert not [kernel for kernel in found["kernels"] if kernel.startswith("__cudnn")], "needs a bias for documents"
        assert not [shape for _, shape in found["arrays"] if shape[-2:] == [48, 48]]
    complete = eight["parameters"] * 2 * 7 / 8  # bytes of one gather of all parameters in bfloat16
    for kind, gathers in ((ALL_GATHER, 2), (REDUCE_SCATTER, 1)):
        moved = moved_head(eight, 320, 64, kind)
        assert sum(one["times"] for one in moved) == 1, "one micro-batch, not by each of six blocks"
        assert "f32" not in {dtype for one in moved for dtype in one["dtypes"]}
        sent = sum(one["nbytes"] for one in eight["collectives"] if one["kind"] == kind)
        assert 0.5 * gathers * complete < sent < 1.05 * gathers * complete


@pytest.mark.drawn
@pytest.mark.skipif(gpu_compiler() is None, reason="no compiler for GPUs: make compilers-cuda")
def test_gpu_step_sums_gradients_while_it_computes() -> None:
    """The MLP's matrices are as large as those of real models: small ones are summed together."""
    [found] = compiled_steps(
        "h100x8", "--model.num_layers", "3", "--model.hidden_dim", "1536", "--model.intermediate_dim", "4096"
    )  # fmt: skip
    in_layers = [one for one in found["collectives"] if one["kind"] == REDUCE_SCATTER and one["times"] == 3]
    matrices = [one for one in in_layers if max(map(math.prod, one["shapes"])) * 8 >= 1536 * 4096]
    assert len(matrices) >= 3, "gate, up and down, each by itself"
    exposed = sum(one["nbytes"] for one in in_layers if one["exposed"])
    assert exposed < 0.4 * sum(one["nbytes"] for one in in_layers), "all but the last one are hidden"


HIGHEST = re.compile(r'operand_precision=\{highest,highest\}|"operand_precision":\["HIGHEST","HIGHEST"\]')
FLOAT32 = ("--trainer.mp", "f32", "--model.seq_len", "128")
ROUNDED = ("--trainer.matmul_precision", "default")


@pytest.mark.drawn
@pytest.mark.skipif(gpu_compiler() is None, reason="no compiler for GPUs: make compilers-cuda")
def test_gpu_products_of_float32_are_not_tf32() -> None:
    found, evaluation = compiled_steps("h100x1", *FLOAT32, made="step,evaluation")
    for program, least in ((found, 20), (evaluation, 6)):
        assert len(program["products"]) >= least
        assert all(HIGHEST.search(product) for product in program["products"])
        assert not program["narrow"]
    [rounded] = compiled_steps("h100x1", *FLOAT32, *ROUNDED)
    assert len(rounded["products"]) == len(found["products"])
    assert not any("operand_precision" in product for product in rounded["products"])


@pytest.mark.drawn
@pytest.mark.skipif(tpu_library() is None, reason="no compiler for TPUs: make compilers")
def test_tpu_products_of_float32_are_not_bfloat16() -> None:
    """With those in the kernels of attention."""
    [found] = compiled_steps("v5e:2x2", *FLOAT32)
    [rounded] = compiled_steps("v5e:2x2", *FLOAT32, *ROUNDED)
    precise = [b"#tpu.contract_precision<fp32>" in base64.b64decode(body) for body in found["bodies"]]
    assert precise == [True] * 3
    assert len(found["products"]) >= 20
    assert all(HIGHEST.search(product) for product in found["products"])
    assert not found["narrow"]
    assert len(rounded["bodies"]) == 3
    assert not any(b"contract_precision<fp32>" in base64.b64decode(body) for body in rounded["bodies"])
    assert not any("operand_precision" in product for product in rounded["products"])
