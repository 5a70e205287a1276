"""Train step and evaluation compiled for TPUs and GPUs: collectives, kernels, precision of products."""

from __future__ import annotations

import base64
import math
import re

import pytest

from midstream_engine.compiled_program.collectives import (
    ALL_GATHER,
    ALL_REDUCE,
    REDUCE_SCATTER,
)
from midstream_engine.compiled_program.gpu_topologies import (
    gpu_compiler,
)
from midstream_engine.compiled_program.topologies import tpu_library
from support.compiled_steps import compiled_steps, logits, moved_head


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
