"""Llama, NeoX and GPT-2: all attention, loss and rematerialisation variants agree."""

from __future__ import annotations

import dataclasses
from typing import Any

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from haliax import NamedArray
from jax.extend.core import jaxprs_in_params
from jax.sharding import NamedSharding

from midstream_core.precision import Precision
from midstream_engine.checkpoint.array_names import flatten
from midstream_engine.config import ConfigError, Gpt2Config, LlamaConfig, LmConfig, NeoxConfig, load_config
from midstream_engine.loop import flops
from midstream_engine.models.causal_attention import choose_backend
from midstream_engine.models.initialization import init_model
from midstream_engine.models.layers import activation, dropout
from midstream_engine.models.lm import segments_of, summed_loss, token_losses
from midstream_engine.models.splash import block_size
from midstream_engine.runtime.mesh import build_layout
from support.paths import CONFIGS

pytestmark = [
    # haliax 1.4 uses names that jax 0.10 deprecates.
    pytest.mark.filterwarnings("ignore:jax.core.is_constant_dim is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:jax.interpreters.pxla.thread_resources is deprecated:DeprecationWarning"),
]
SEED, VOCAB, BATCH, POSITIONS = 7, 257, 2, 128
SHAPE: dict[str, Any] = {
    "seq_len": POSITIONS, "hidden_dim": 32, "num_layers": 2, "num_heads": 4, "pad_vocab_to_multiple": 64,
    "gradient_checkpointing": False,
}  # fmt: skip
LLAMA = LlamaConfig(**SHAPE, num_kv_heads=2, intermediate_dim=48)
NEOX = NeoxConfig(**SHAPE)
GPT2 = Gpt2Config(**SHAPE)
QUICK = {"xla_backend_optimization_level": 0}  # programs that run once: compilation takes all the time


def batch(size: int = BATCH) -> tuple[NamedArray, NamedArray]:
    """Tokens with ends of documents, and an uneven loss mask."""
    random = np.random.default_rng(SEED)
    axes = hax.make_axes(batch=size, position=POSITIONS)
    tokens = random.integers(0, VOCAB, (size, POSITIONS))
    tokens[:, ::50] = VOCAB - 1
    mask = random.integers(0, 2, (size, POSITIONS))
    return tuple(NamedArray(jnp.asarray(array, jnp.int32), axes) for array in (tokens, mask))  # pyright: ignore[reportReturnType]


def loss_of(model: Any, tokens: NamedArray, mask: NamedArray, fused: bool) -> jax.Array:
    if fused:
        return summed_loss(model, tokens, mask, eos=VOCAB - 1)
    return hax.sum(token_losses(model, tokens, mask, eos=VOCAB - 1)).scalar()


def measured(config: LmConfig, fused: bool = True, **changes: Any) -> tuple[float, Any]:
    """Return (loss, gradient) of the model of the seed."""
    changed = dataclasses.replace(config, **changes)
    model, (tokens, mask) = init_model(changed, VOCAB, jax.random.key(SEED)), batch()
    step = jax.jit(jax.value_and_grad(lambda model: loss_of(model, tokens, mask, fused)), compiler_options=QUICK)
    loss, gradient = step(model)
    return float(loss), gradient


@pytest.fixture(scope="module")
def plain() -> tuple[float, Any]:
    return measured(LLAMA)


def assert_same(found: tuple[float, Any], expected: tuple[float, Any], tolerance: float = 1e-5) -> None:
    assert found[0] == pytest.approx(expected[0], rel=1e-6)
    for a, b in zip(jax.tree.leaves(found[1]), jax.tree.leaves(expected[1]), strict=True):
        assert float(jnp.abs(a - b).max()) <= tolerance * float(jnp.abs(b).max())


@pytest.mark.parametrize("backend", ["xla", "splash"])
def test_attention_backends_give_the_same_loss_and_gradient(plain: tuple[float, Any], backend: str) -> None:
    """With grouped queries, and with documents that do not see each other. Kernels run in interpret mode here."""
    assert_same(measured(LLAMA, attn_backend=backend), plain)


def test_fused_backward_kernel_gives_the_same_gradient(plain: tuple[float, Any]) -> None:
    assert_same(measured(LLAMA, attn_backend="splash", flash_attention_fused_backward=True), plain)


@pytest.mark.parametrize("name", ["gelu_new", "gelu", "relu", "silu"])
def test_activation_stores_only_its_argument_for_backward(name: str) -> None:
    x = hax.named(jnp.linspace(-3, 3, 7), "mlp")
    _, backward = jax.vjp(activation(name), x)
    assert len([leaf for leaf in jax.tree.leaves(backward) if leaf.shape == (7,)]) == 1


@pytest.mark.parametrize(
    "policy",
    [
        "qkv+attention",
        *(pytest.param(name, marks=pytest.mark.drawn) for name in ("full", "dots_with_no_batch_dims_saveable", "mlp")),
    ],
)
def test_rematerialisation_keeps_gradient(plain: tuple[float, Any], policy: str) -> None:
    assert_same(measured(LLAMA, gradient_checkpointing=policy), plain, 1e-6)


@pytest.mark.drawn
@pytest.mark.parametrize("fused", [True, False])
def test_blockwise_loss_equals_plain_loss(plain: tuple[float, Any], fused: bool) -> None:
    assert_same(measured(LLAMA, fused, cross_entropy_block_size=32), plain)


@pytest.mark.parametrize("block", [None, 32])
def test_z_loss_adds_square_of_log_normaliser(block: int | None) -> None:
    """Value and gradient against the logits, without blocks."""
    model = init_model(dataclasses.replace(LLAMA, cross_entropy_block_size=block), VOCAB, jax.random.key(SEED))
    tokens, mask = batch()

    def plain(model: Any) -> jax.Array:
        logits = model(tokens, segments_of(tokens, VOCAB - 1), None).rearrange(("batch", "position", "vocab")).array
        normaliser = jax.nn.logsumexp(logits[..., :VOCAB], -1)
        right = jnp.take_along_axis(logits, jnp.roll(tokens.array, -1, 1)[..., None], -1)[..., 0]
        return jnp.sum((normaliser - right + 0.1 * normaliser**2) * mask.array)

    def measured(model: Any) -> jax.Array:
        return summed_loss(model, tokens, mask, eos=VOCAB - 1, z_loss=0.1)

    (value, gradient), (wanted, expected) = (
        jax.jit(jax.value_and_grad(function), compiler_options=QUICK)(model) for function in (measured, plain)
    )
    assert_same((float(value), gradient), (float(wanted), expected))


def biggest(jaxpr: Any) -> int:
    """Elements of the largest array of a program, inner programs included."""
    sizes = [0]
    for equation in jaxpr.eqns:
        sizes += [int(np.prod(out.aval.shape)) for out in equation.outvars if hasattr(out.aval, "shape")]
        sizes += [biggest(inner) for inner in jaxprs_in_params(equation.params)]
    return max(sizes)


@pytest.mark.parametrize("fused", [True, False])
def test_blockwise_loss_makes_no_array_of_all_logits(fused: bool) -> None:
    """Neither in the program of the loss nor in that of its gradient."""
    tokens, mask = batch(8)
    logits = 8 * POSITIONS * 320

    def largest(block: int) -> int:
        config = dataclasses.replace(GPT2, num_layers=1, num_heads=1, cross_entropy_block_size=block)
        model = init_model(config, VOCAB, jax.random.key(SEED))
        grad = jax.value_and_grad(lambda model: loss_of(model, tokens, mask, fused))
        return biggest(jax.make_jaxpr(grad)(model).jaxpr)

    assert largest(POSITIONS) >= logits
    assert largest(16) < logits


INVERSE = dataclasses.replace(
    GPT2, seq_len=16, num_layers=3, initializer_range=0.2, embed_pdrop=0.1, attn_pdrop=0.1, resid_pdrop=0.1,
    scale_attn_by_inverse_layer_idx=True,
)  # fmt: skip


def hidden(model: Any, rows: int, seed: int | None) -> np.ndarray:
    """Hidden states for ``rows`` equal rows, one dropout key each: float32 [row, position, embed]."""
    row = np.random.default_rng(SEED).integers(0, VOCAB, INVERSE.seq_len)
    tokens = hax.named(jnp.asarray(np.tile(row, (rows, 1)), jnp.int32), ("batch", "position"))
    keys = None
    if seed is not None:
        keys = hax.named(jax.random.key_data(jax.random.split(jax.random.key(seed), rows)), ("batch", "key"))
    run = jax.jit(lambda model: model.hidden(tokens, None, keys).array, compiler_options=QUICK)
    return np.asarray(run(model))


@pytest.mark.parametrize("seed", [None, 3], ids=["dropout off", "dropout on"])
def test_inverse_layer_scaling_divides_queries(seed: int | None) -> None:
    """Layer i (from 0) divides attention products by i + 1, like divided query weights."""
    model: Any = init_model(INVERSE, VOCAB, jax.random.key(SEED))
    plain: Any = init_model(
        dataclasses.replace(INVERSE, scale_attn_by_inverse_layer_idx=False), VOCAB, jax.random.key(SEED)
    )
    assert np.abs(hidden(model, 2, seed) - hidden(plain, 2, seed)).max() > 1e-3
    for part in ("weight", "bias"):
        array = getattr(plain.blocks.stacked.attn.qkv, part)
        divide = np.ones((INVERSE.num_layers, 3), np.float32)
        divide[:, 0] = 1 / np.arange(1, INVERSE.num_layers + 1)  # queries alone
        by = hax.named(jnp.asarray(divide), (array.axes[0].name, "qkv"))
        plain = eqx.tree_at(
            lambda model, part=part: getattr(model.blocks.stacked.attn.qkv, part), plain,
            (array * by.broadcast_to(array.axes)).rearrange(array.axes),
        )  # fmt: skip
    np.testing.assert_allclose(hidden(model, 2, seed), hidden(plain, 2, seed), atol=2e-5)


def test_dropout_follows_its_key_and_keeps_the_mean() -> None:
    """Rare dropout: the mean moves with the rate, a single row by the rate's square root.

    The model is no linear function of the dropped elements.
    """
    rare = dataclasses.replace(INVERSE, embed_pdrop=0.01, attn_pdrop=0.01, resid_pdrop=0.01)
    model = init_model(rare, VOCAB, jax.random.key(SEED))
    off, on = hidden(model, 1, None)[0], hidden(model, 256, 3)
    assert np.array_equal(on, hidden(model, 256, 3))
    assert np.abs(on[0] - on[1]).max() > 0.1  # the same tokens under two keys
    assert np.abs(on - hidden(model, 256, 4)).max(axis=(1, 2)).min() > 0.1
    apart = np.linalg.norm(on - off, axis=(1, 2)).mean() / np.linalg.norm(off)
    assert np.linalg.norm(on.mean(0) - off) / np.linalg.norm(off) < apart / 3
    ones = hax.ones(hax.make_axes(batch=64, embed=1024))
    keys = hax.named(jax.random.key_data(jax.random.split(jax.random.key(SEED), 64)), ("batch", "key"))
    dropped = np.asarray(dropout(ones, 0.1, ones.resolve_axis("batch"), keys, 0).array)
    assert dropped.mean() == pytest.approx(1.0, abs=5 * (0.1 / 0.9 / dropped.size) ** 0.5)


@pytest.mark.parametrize(
    "config", [pytest.param(LLAMA, id="llama"), pytest.param(NEOX, id="neox", marks=pytest.mark.drawn)]
)
def test_fsdp_and_tensor_parallelism_keep_loss(config: LmConfig) -> None:
    """Blockwise loss included, on 2 x 2 devices; and they do cut what they say."""
    flags = ["--trainer.model_axis_size", "2", "--trainer.tensor_parallel_axes", "[mlp, heads, kv_heads]"]
    layout = build_layout(load_config(flags).config.trainer, jax.devices()[:4])
    config = dataclasses.replace(config, cross_entropy_block_size=32, num_layers=1)
    model, (tokens, mask) = init_model(config, VOCAB, jax.random.key(SEED)), batch()
    shardings = layout.at_rest(model)
    with layout.active():
        step = jax.jit(jax.value_and_grad(lambda model: loss_of(model, tokens, mask, True)), compiler_options=QUICK)
        loss, gradient = step(jax.device_put(model, shardings))
    assert_same((float(loss), jax.device_get(gradient)), measured(config))
    part = "self_attn/k_proj" if isinstance(config, LlamaConfig) else "attention/qkv"
    name = f"blocks/stacked/{part}/weight"
    sharding = flatten(jax.device_put(model, shardings))[name].value.sharding
    assert isinstance(sharding, NamedSharding)
    assert {"data", "model"} <= {part for part in sharding.spec if part}


@pytest.mark.drawn
@pytest.mark.parametrize("backend", ["splash", "triton"])
def test_kernels_run_on_a_mesh(backend: str) -> None:
    layout = build_layout(load_config(["--trainer.model_axis_size", "2"]).config.trainer, jax.devices()[:4])
    layout = dataclasses.replace(layout, compute={**layout.compute, "heads": ("model",)})
    config = dataclasses.replace(LLAMA, attn_backend=backend, num_layers=1, head_dim=16)
    model, (tokens, mask) = init_model(config, VOCAB, jax.random.key(SEED)), batch()
    with layout.active():
        loss = jax.jit(lambda model: loss_of(model, tokens, mask, True))(model)
    assert float(loss) == pytest.approx(measured(config, attn_backend="vanilla")[0], rel=1e-6)


@pytest.mark.parametrize(("dtype", "fused"), [(jnp.float32, False), (jnp.bfloat16, False), (jnp.bfloat16, True)])
def test_splash_lowers_for_tpu(monkeypatch: pytest.MonkeyPatch, dtype: Any, fused: bool) -> None:
    """The kernel, forward and backward: it is lowered, not run; its speed is not measured yet."""
    monkeypatch.setattr("midstream_engine.models.splash.jax.default_backend", lambda: "tpu")
    config = dataclasses.replace(
        LLAMA, attn_backend="splash", num_layers=1, head_dim=128, flash_attention_fused_backward=fused
    )
    shapes = jax.eval_shape(
        lambda key: jax.tree.map(lambda leaf: leaf.astype(dtype), init_model(config, VOCAB, key)), jax.random.key(0)
    )
    tokens, mask = batch()
    step = jax.jit(jax.grad(lambda model: loss_of(model, tokens, mask, True)))
    assert step.trace(shapes).lower(lowering_platforms=("tpu",)).as_text().count("tpu_custom_call") == (
        2 if fused else 3
    )


def test_attention_follows_platform_unless_overridden() -> None:
    wide, narrow = jnp.float32, jnp.bfloat16
    usual = dataclasses.replace(LLAMA, head_dim=64)
    assert choose_backend(usual, narrow, platform="gpu") == "cudnn"
    assert choose_backend(usual, wide, platform="gpu") == "xla"  # cuDNN has no float32
    assert choose_backend(usual, narrow, platform="gpu", documents=True) == "triton"
    assert choose_backend(usual, wide, platform="gpu", documents=True) == "xla"
    assert choose_backend(dataclasses.replace(usual, head_dim=80), narrow, platform="gpu", documents=True) == "cudnn"
    chosen = dataclasses.replace(usual, attn_backend="triton")
    assert choose_backend(chosen, wide, platform="gpu") == "xla"
    assert (
        choose_backend(dataclasses.replace(usual, attn_backend="cudnn"), narrow, platform="gpu", documents=True)
        == "cudnn"
    )
    assert choose_backend(dataclasses.replace(usual, head_dim=256), narrow, platform="gpu") == "xla"
    assert choose_backend(usual, narrow, platform="tpu") == "splash"
    assert choose_backend(dataclasses.replace(usual, seq_len=100), narrow, platform="tpu") == "xla"
    assert choose_backend(usual, narrow, platform="cpu") == "vanilla"
    assert choose_backend(usual, narrow, platform="gpu", dropout=True) == "vanilla"
    assert choose_backend(dataclasses.replace(usual, attn_backend="jax_flash"), narrow, platform="gpu") == "xla"
    assert choose_backend(dataclasses.replace(usual, use_flash_attention=False), narrow, platform="gpu") == "vanilla"
    with pytest.raises(ConfigError, match="multiple of 128, not 100"):
        block_size(100, None)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--model.type", "llama", "--model.num_kv_heads", "5"], "num_kv_heads: 5 does not divide num_heads"),
        (["--model.attn_backend", "flash"], "attn_backend: 'flash' is not known; use one of default, vanilla, xla"),
        (["--model.gradient_checkpointing", "some"], "gradient_checkpointing: 'some' is not known"),
        (["--model.attn_pdrop", "0.1", "--model.attn_backend", "splash"], "splash attention has no dropout"),
        (["--model.type", "neox", "--model.rotary_pct", "0"], r"rotary_pct: 0.0 is not in \(0, 1\]"),
        (["--model.type", "llama", "--model.rope.type", "yarn"], "model.rope.type: 'yarn' is not known"),
        (["--model.cross_entropy_block_size", "100"], "cross_entropy_block_size: 100 does not divide"),
    ],
)
def test_invalid_model_is_refused(flags: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(flags)


@pytest.mark.parametrize("name", ["llama_tiny", "neox_tiny", "llama_1b"])
def test_shipped_model_configurations_are_read(name: str) -> None:
    model = load_config(["--config_path", str(CONFIGS / f"{name}.yaml")]).config.model
    assert isinstance(model, (LlamaConfig, NeoxConfig))


def test_flops_equal_a_manual_count() -> None:
    """1B Llama: per layer q, k, v, o and three MLP matrices, the head, attention over 4096 keys."""
    config = load_config(["--config_path", str(CONFIGS / "llama_1b.yaml")]).config.model
    layer = 2048 * (2048 + 512 + 512 + 2048) + 3 * 2048 * 8192
    forward = 2 * (16 * layer + 2048 * 128_256) + 16 * 2 * 2 * 4096 * 2048
    assert flops.flops_per_token(config, 128_256) == 3 * forward
    assert flops.flops_per_token(config, 128_256, causal=True) == 3 * (forward - 16 * 2 * 4096 * 2048)
    gpt2 = 12 * (12 * 768 * 768) + 768 * 50_257
    assert flops.flops_per_token(Gpt2Config(), 50_257) == 6 * gpt2 + 12 * 12 * 768 * 1024


@pytest.mark.parametrize(
    ("kind", "narrow", "highest", "default"),
    [
        ("NVIDIA H100 80GB HBM3", 989.5e12, 67e12, 494.7e12),
        ("NVIDIA H100 PCIe", 756.5e12, 51e12, 378e12),
        ("NVIDIA A100-SXM4-40GB", 312e12, 19.5e12, 156e12),
        ("Tesla V100-SXM2-16GB", 125e12, 15.7e12, 15.7e12),
        ("TPU v5 lite", 197e12, 197e12 / 6, 197e12),
        ("TPU v6 lite", 918e12, 153e12, 918e12),
    ],
)
def test_peak_flops_are_of_the_arithmetic(kind: str, narrow: float, highest: float, default: float) -> None:
    for mp, chosen, wanted in [
        ("p=f32,c=bfloat16", "highest", narrow),
        ("half", "default", narrow),
        ("f32", "highest", highest),
        ("p=bf16,c=f32", "highest", highest),
        ("f32", "default", default),
    ]:
        precision = Precision.parse(mp)
        found = flops.peak(kind, precision.compute, precision.of_products(chosen))
        assert found == pytest.approx(wanted), (mp, chosen)


@pytest.mark.parametrize(
    "kind", ["NVIDIA L40S", "cpu", "NVIDIA H100 NVL", "NVIDIA H200 NVL", "NVIDIA H100 80GB HBM3 MIG 1g.10gb"]
)
def test_peak_flops_of_unknown_device_is_none(kind: str) -> None:
    for compute, products in (("bfloat16", None), ("float32", "highest"), ("float32", None)):
        assert flops.peak(kind, compute, products) is None
