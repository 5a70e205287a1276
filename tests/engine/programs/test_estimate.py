"""Estimates of a step for accelerators that are not here: from a program's text, and the compiler's refusals."""

from __future__ import annotations

import base64
import json
import subprocess
import sys

import pytest

from midstream_core.accelerators import find_accelerator
from midstream_engine.compiled_program.collectives import Collective
from midstream_engine.compiled_program.gpu_roofline import BANDWIDTH_SHARE, PRODUCT_SHARE, gpu_step_time
from midstream_engine.compiled_program.gpu_topologies import gpu_compiler
from midstream_engine.compiled_program.hlo_text import computations
from midstream_engine.compiled_program.roofline import (
    KERNEL_SHARE,
    LINK_SHARE,
    exposed_seconds,
    kernel_flops,
    step_time,
    usable_links,
)
from midstream_engine.compiled_program.topologies import tpu_library
from midstream_engine.config import ConfigError
from midstream_engine.estimate import main, own_flag, refused
from support.accelerator_types import known
from support.paths import CONFIGS

# A loop of 5 turns with a kernel of splash attention, and an exposed gather after it.
PROGRAM = """
HloModule jit_step, is_scheduled=true

%body (state: (s32[], bf16[2,8,1024,64])) -> (s32[], bf16[2,8,1024,64]) {
  %splash_mha_fwd_residuals.1 = bf16[2,8,1024,64]{3,2,1,0} custom-call(%a, %b, %c), \
custom_call_target="tpu_custom_call", operand_layout_constraints={s8[1,1,1]{2,1,0}, bf16[2,8,1024,64]{3,2,1,0}, \
bf16[2,4,1024,64]{3,2,1,0}, bf16[2,4,1024,64]{3,2,1,0}}, frontend_attributes={kernel_metadata={
"xprof_metadata":"{\\"block_q\\": 512, \\"block_kv\\": 512}"
}}
  %product = bf16[64,64]{1,0} fusion(%d), kind=kOutput, calls=%any, backend_config={"estimated_cycles":"1500000"}
  ROOT %next = (s32[], bf16[2,8,1024,64]{3,2,1,0}) tuple(%e, %splash_mha_fwd_residuals.1)
}

ENTRY %main (x: bf16[16,8]) -> f32[] {
  %loop = (s32[], bf16[2,8,1024,64]{3,2,1,0}) while(%start), condition=%any, body=%body, \
backend_config={"known_trip_count":{"n":"5"}}
  %gather = bf16[1000,1000]{1,0} all-gather(%x), channel_id=1, replica_groups=[1,16]<=[16]
  ROOT %result = f32[] constant(0)
}
"""


def test_step_time_is_cycles_kernels_and_exposed_bytes() -> None:
    flops = 5 * 2 * 2 * (2 * 8) * 1024 * 1024 * 128 * 0.75  # two products; heads padded to 128; blocks on the diagonal
    assert kernel_flops(computations(PROGRAM), 128) == flops
    found = step_time(PROGRAM, known("v5e-16"))
    assert found.compute == pytest.approx(5 * 1.5e6 / 1.5e9)
    assert found.kernels == pytest.approx(flops / 197e12 / KERNEL_SHARE[1])
    sent = 2e6 * 15 / 16
    assert found.exposed == pytest.approx(sent / (200e9 * 0.5) / LINK_SHARE[1]), "the ends of 4x4 are not connected"
    assert found.low < found.seconds < found.high


def test_kernel_in_float32_takes_six_passes() -> None:
    def flops(bytecode: bytes) -> float:
        body = f'}}}}, backend_config={{"custom_call_config":{{"body":"{base64.b64encode(bytecode).decode()}"}}}}'
        text = PROGRAM.replace("\n}}\n  %product", f"\n{body}\n  %product")
        assert text != PROGRAM
        return kernel_flops(computations(text.replace("bf16[", "f32[")), 128)

    assert flops(b"ML\xefR..#tpu.contract_precision<fp32>..") == 6 * flops(b"ML\xefR..")


def test_a_matrix_unit_of_256_takes_as_long_for_a_narrow_head() -> None:
    assert kernel_flops(computations(PROGRAM), 256) == 2 * kernel_flops(computations(PROGRAM), 128)


@pytest.mark.parametrize(
    ("name", "devices", "share"),
    [
        ("v5e-256", 256, 1.0),
        ("v5e-16", 16, 0.5),
        ("v5p-128", 64, 1.0),
        ("v5p-8", 4, 1 / 3),  # two sides of two chips, and none in the third direction
        ("v5p-128", 4, 1 / 3),  # a ring along one side
        ("v5e-1", 1, 1.0),
        ("h100x8", 8, 1.0),
    ],
)
def test_links_that_a_collective_can_use(name: str, devices: int, share: float) -> None:
    assert usable_links(known(name), devices) == pytest.approx(share)


def test_hidden_collectives_take_no_time() -> None:
    device = find_accelerator("TPU v5 lite")
    assert device is not None
    hidden = Collective("all-gather", ("bf16",), ((8,),), 16, 1.0, 1e9, False, "")
    assert exposed_seconds([hidden], known("v5e-16"), device) == 0.0


def test_refusals_of_the_compiler_say_what_is_needed() -> None:
    hbm = "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 24.35G of 15.75G hbm. Exceeded by 8.6G."
    assert refused(hbm) == (int(24.35 * 2**30), int(15.75 * 2**30))
    temporaries = (
        "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (512.00M) exceeds "
        "available HBM (15.75G)."
    )
    assert refused(temporaries) == (512 << 20, int(15.75 * 2**30))
    assert refused("RESOURCE_EXHAUSTED: no numbers") == (None, None)
    assert refused("INTERNAL: something else") is None


def test_flag_of_the_accelerators(capsys: pytest.CaptureFixture[str]) -> None:
    found, rest = own_flag(["--trainer.seed", "1", "--accelerators", "v5e-4", "--config_path", "c.yaml"])
    assert found.topology == "v5e:2x2"
    assert rest == ["--trainer.seed", "1", "--config_path", "c.yaml"]
    with pytest.raises(ConfigError, match="names no accelerators"):
        own_flag(["--accelerators", "lab"])
    with pytest.raises(ConfigError, match="there are v5e-1"):
        own_flag(["--accelerators", "v5e-3"])
    assert main(["--accelerators"]) == 2
    assert capsys.readouterr().err.startswith("midstream: --accelerators: '' names no accelerators")


# Four kernels for GPUs: a product in a fusion that reads a slice of a stack, one of cuBLAS, attention, and an addition.
GPU_PROGRAM = """
HloModule jit_step, is_scheduled=true

%sliced_product (p0: bf16[4,1024,1024], p1: bf16[1024,1024]) -> bf16[1024,1024] {
  %p0 = bf16[4,1024,1024]{2,1,0} parameter(0)
  %p1 = bf16[1024,1024]{1,0} parameter(1)
  %slice = bf16[1,1024,1024]{2,1,0} dynamic-slice(%p0), dynamic_slice_sizes={1,1024,1024}
  %one = bf16[1024,1024]{1,0} bitcast(%slice)
  ROOT %dot = bf16[1024,1024]{1,0} dot(%one, %p1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

ENTRY %main (a: bf16[4,1024,1024], b: bf16[1024,1024]) -> f32[1000000] {
  %a = bf16[4,1024,1024]{2,1,0} parameter(0)
  %b = bf16[1024,1024]{1,0} parameter(1)
  %x = f32[100000000]{0} parameter(2)
  %q = bf16[2,1024,8,128]{3,2,1,0} parameter(3)
  %first = bf16[1024,1024]{1,0} fusion(%a, %b), kind=kCustom, calls=%sliced_product
  %second = bf16[1024,1024]{1,0} custom-call(%first, %b), custom_call_target="__cublas$gemm", \
backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"]}}}
  %attention = (bf16[2,8,1024,128]{3,1,2,0}, u8[0]{0}) custom-call(%q, %q, %q), \
custom_call_target="__cudnn$fmhaSoftmax", operand_layout_constraints={bf16[2,1024,8,128]{3,2,1,0}, \
bf16[2,1024,8,128]{3,2,1,0}, bf16[2,1024,8,128]{3,2,1,0}}, backend_config={"mask_type": "CAUSAL"}
  %gather = bf16[1000,1000]{1,0} all-gather(%b), channel_id=1, replica_groups=[1,8]<=[8]
  ROOT %sum = f32[100000000]{0} add(%x, %x)
}
"""


def test_gpu_kernel_takes_the_longer_of_products_and_bytes() -> None:
    found = gpu_step_time(GPU_PROGRAM, known("h100x8"))
    product = 2 * 1024**3 / 989.5e12 / PRODUCT_SHARE[1]
    moved = 3 * 1024 * 1024 * 2 / 3350e9 / BANDWIDTH_SHARE[1]  # of the stack only the slice
    addition = 3 * 4e8 / 3350e9 / BANDWIDTH_SHARE[1]
    assert product > moved
    assert found.compute == pytest.approx(2 * product + addition)
    causal = 2 * 2 * 2 * 8 * 1024 * 1024 * 128 / 2
    assert found.kernels == pytest.approx(causal / 989.5e12 / KERNEL_SHARE[1])
    assert found.exposed == pytest.approx(2e6 * 7 / 8 / 450e9 / LINK_SHARE[1])
    assert found.low < found.seconds < found.high


def test_gpu_product_of_float32_takes_as_long_as_its_precision() -> None:
    wide = GPU_PROGRAM.replace("bf16", "f32")
    highest = wide.replace("rhs_contracting_dims={0}", "rhs_contracting_dims={0}, operand_precision={highest,highest}")
    highest = highest.replace(
        '"lhs_contracting_dimensions":["1"]}',
        '"lhs_contracting_dimensions":["1"]},"precision_config":{"operand_precision":["HIGHEST","HIGHEST"]}',
    )
    seconds = [gpu_step_time(text, known("h100x8")).compute for text in (GPU_PROGRAM, wide, highest)]
    flops, addition = 2 * 1024**3 / PRODUCT_SHARE[1], 3 * 4e8 / 3350e9 / BANDWIDTH_SHARE[1]
    assert seconds == pytest.approx([addition + 2 * flops / peak for peak in (989.5e12, 494.7e12, 67e12)])


def test_gpu_kernels_within_documents_count_as_attention() -> None:
    target = 'custom_call_target="__cudnn$fmhaSoftmax"'
    name = 'metadata={op_name="jit(step)/shard_map/document_attention_key_gradients/pallas_call"}'
    ours = GPU_PROGRAM.replace(target, f'custom_call_target="__gpu$xla.gpu.triton", {name}')
    assert ours != GPU_PROGRAM
    # Four products where cuDNN's forward has two, both causal.
    first, second = (gpu_step_time(text, known("h100x8")) for text in (GPU_PROGRAM, ours))
    assert second.kernels == pytest.approx(2 * first.kernels)
    assert second.compute == pytest.approx(first.compute)


@pytest.mark.drawn
@pytest.mark.parametrize(
    ("name", "flags", "peak"),
    [
        ("h100x1", ("--trainer.mp", "p=f32,c=bfloat16"), 989.5e12),
        ("h100x1", ("--trainer.mp", "f32"), 67e12),
        ("h100x1", ("--trainer.mp", "f32", "--trainer.matmul_precision", "default"), 494.7e12),
        ("v5e-1", ("--trainer.mp", "f32"), 197e12 / 6),
    ],
)
def test_utilisation_is_of_the_arithmetic(name: str, flags: tuple[str, ...], peak: float) -> None:
    if (tpu_library() if name.startswith("v") else gpu_compiler()) is None:
        pytest.skip("no compiler: make compilers compilers-cuda")
    done = subprocess.run(
        [sys.executable, "-m", "midstream_engine.estimate", "--config_path", str(CONFIGS / "llama_tiny.yaml"),
         "--accelerators", name, "--as_configured", *flags],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["mfu"] * found["step_seconds"] == pytest.approx(found["model_flops"] / peak)
