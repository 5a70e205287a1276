"""Collectives, their bytes, and cycles in the text of compiled programs."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from midstream_engine.compiled_program.collectives import (
    ALL_GATHER,
    ALL_TO_ALL,
    REDUCE_SCATTER,
    by_kind,
    collectives,
    total_bytes,
)
from midstream_engine.compiled_program.hlo_text import computations, estimated_cycles, run_counts

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
