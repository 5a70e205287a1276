"""One update: its result is independent of devices and micro-batches."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from haliax import NamedArray

from midstream.migrate.planning.batch_shape import batch_shape
from midstream_engine.checkpoint.array_names import flatten
from midstream_engine.computation.programs import (
    compile_evaluation,
    compile_reference_losses,
    compile_step,
)
from midstream_engine.computation.setup import Setup, prepare
from midstream_engine.computation.train_state import TrainState
from midstream_engine.config import ConfigError, load_config
from midstream_engine.data.batches import make_batch
from midstream_engine.models.lm import token_losses
from midstream_engine.models.random_keys import key_of
from support.engines.train_states import contents, update
from support.paths import CONFIGS

pytestmark = [
    # haliax 1.4 uses names that jax 0.10 deprecates.
    pytest.mark.filterwarnings("ignore:jax.core.is_constant_dim is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:jax.interpreters.pxla.thread_resources is deprecated:DeprecationWarning"),
]
STEPS = 50
DROPOUT = ["--model.resid_pdrop", "0.1", "--model.attn_pdrop", "0.1", "--model.embed_pdrop", "0.1"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("root"))


def setup_on(root: str, devices: int, *flags: str) -> Setup:
    arguments = ["--config_path", str(CONFIGS / "gpt2_tiny.yaml"), *flags]
    return prepare(load_config(arguments).config, root, None, jax.devices()[:devices])


@pytest.fixture(scope="module")
def fresh(root: str) -> TrainState:
    """The state of step 0, on the host; another test checks that it is the same on any mesh."""
    return jax.tree.map(lambda leaf: jax.random.key_data(leaf) if is_key(leaf) else np.asarray(leaf), made_on(root, 1))


def is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def made_on(root: str, devices: int, *flags: str) -> TrainState:
    return setup_on(root, devices, *flags).fresh_state()


def put(setup: Setup, state: TrainState) -> TrainState:
    """A state of the host on the setup's devices."""

    def place(leaf: Any, wanted: Any) -> Any:
        if is_key(wanted):
            leaf = key_of(jnp.array(leaf))
        return jax.device_put(jnp.array(leaf), wanted.sharding)

    # By leaves: the trees' static fields differ where the configurations do.
    wanted, structure = jax.tree.flatten(setup.abstract)
    return jax.tree.unflatten(structure, map(place, jax.tree.leaves(state), wanted))


def train(setup: Setup, fresh: TrainState, steps: int = STEPS, masked: bool = False) -> tuple[list[float], TrainState]:
    """Return the losses of ``steps`` updates and the state after; ``masked``: an uneven loss mask."""
    step, state, losses = compile_step(setup), put(setup, fresh), []
    for index in range(steps):
        batch = setup.batches.batch(index)
        if masked:
            mask = batch.loss_mask.copy()
            for row in range(batch.size):
                mask[row, : (row * 7 + index) % 32] = 0
            batch = make_batch(index, batch.tokens, mask)
        state, result = update(setup, step, state, index, batch)
        losses.append(float(result.loss))
    return losses, state


def shard_shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    return {name: array.value.addressable_shards[0].data.shape for name, array in flatten(tree).items()}


@pytest.mark.drawn
def test_fresh_state_is_bit_identical_on_any_mesh(root: str) -> None:
    alone = contents(made_on(root, 1))
    assert contents(made_on(root, 8)) == alone
    flags = ("--trainer.model_axis_size", "2", "--trainer.tensor_parallel_axes", "[mlp, heads]")
    assert contents(made_on(root, 4, *flags)) == alone


@pytest.mark.drawn
@pytest.mark.parametrize(
    "option", [jax.default_prng_impl("rbg"), jax.threefry_partitionable(False)], ids=["rbg", "not-partitionable"]
)
def test_options_of_jax_change_no_random_number(root: str, fresh: TrainState, option: Any) -> None:
    """Each option is a variable of the environment, which the hosts of a migration need not have in common."""
    alone, losses = contents(made_on(root, 1)), train(setup_on(root, 1, *DROPOUT), fresh, steps=2)[0]
    with option:
        assert contents(made_on(root, 2)) == alone
        found = train(setup_on(root, 2, *DROPOUT, "--trainer.per_device_parallelism", "2"), fresh, steps=2)[0]
    assert relative(found, losses) < 1e-5


def test_parameters_and_moments_stay_sharded_after_update(root: str, fresh: TrainState) -> None:
    setup = setup_on(root, 4)
    step, state = compile_step(setup), put(setup, fresh)
    expected = {
        "model/blocks/stacked/mlp/up/weight": (2, 16, 256),
        "model/blocks/stacked/attn/qkv/weight": (2, 16, 3, 4, 16),
        "model/blocks/stacked/mlp/up/bias": (2, 256),
        "model/token_embeddings/weight": (320, 16),
        "model/ln_f/weight": (16,),
        "optimizer/adam/mu/blocks/stacked/mlp/up/weight": (2, 16, 256),
        "optimizer/adam/nu/token_embeddings/weight": (320, 16),
        "optimizer/schedule/count": (),
    }
    before = shard_shapes(state)
    state, _ = update(setup, step, state, 0, setup.batches.batch(0))
    after = shard_shapes(state)
    assert after == before
    assert {name: after[name] for name in expected} == expected


def relative(a: Sequence[float], b: Sequence[float]) -> float:
    return max(abs(x - y) / abs(y) for x, y in zip(a, b, strict=True))


@pytest.fixture(scope="module")
def alone(root: str, fresh: TrainState) -> list[float]:
    """Masked data, dropout, one device, one micro-batch."""
    return train(setup_on(root, 1, *DROPOUT), fresh, masked=True)[0]


@pytest.mark.parametrize(
    ("devices", "per_device"),
    [(4, 1), *(pytest.param(*each, marks=pytest.mark.drawn) for each in ((1, 4), (2, 1), (8, -1)))],
)
def test_devices_and_accumulation_keep_loss(
    root: str, fresh: TrainState, alone: list[float], devices: int, per_device: int
) -> None:
    """1, 2, 4 and 8 devices, 1, 2 and 4 micro-batches; neither with dropout nor with an uneven loss mask."""
    setup = setup_on(root, devices, *DROPOUT, "--trainer.per_device_parallelism", str(per_device))
    assert setup.cut.micro == (1 if per_device == -1 else 8 // devices // per_device)
    losses, _ = train(setup, fresh, masked=True)
    assert relative(losses, alone) < 1e-5
    assert losses[-1] < losses[0]


@pytest.fixture(scope="module")
def plain(root: str, fresh: TrainState) -> list[float]:
    return train(setup_on(root, 1), fresh, steps=5)[0]


def test_tensor_parallelism_shards_axes_and_keeps_loss(root: str, fresh: TrainState, plain: list[float]) -> None:
    flags = ["--trainer.model_axis_size", "2", "--trainer.tensor_parallel_axes", "[mlp, heads]"]
    losses, state = train(setup_on(root, 4, *flags, "--model.gradient_checkpointing", "true"), fresh, steps=5)
    assert relative(losses, plain) < 1e-5
    shapes = shard_shapes(state)
    assert shapes["model/blocks/stacked/mlp/up/weight"] == (2, 32, 128)
    assert shapes["optimizer/adam/mu/blocks/stacked/attn/proj/weight"] == (2, 2, 16, 32)


@pytest.mark.drawn
@pytest.mark.parametrize(
    "flags",
    [
        ["--trainer.compute_axis_resources", "{embed: model}"],
        ["--trainer.fsdp_axis", "[vocab]", "--trainer.compute_axis_resources", "{vocab: model}"],
    ],
    ids=["embed", "vocab"],
)
def test_axis_of_the_head_is_sharded_otherwise_at_rest(
    root: str, fresh: TrainState, plain: list[float], flags: list[str]
) -> None:
    """Over data at rest, over model in the computation: the parts of its gradient end on the devices that have them."""
    flags = [*flags, "--trainer.model_axis_size", "2", "--model.cross_entropy_block_size", "8"]
    assert relative(train(setup_on(root, 4, *flags), fresh, steps=5)[0], plain) < 1e-5


@pytest.mark.drawn
def test_bfloat16_is_near_float32_with_float32_masters(root: str, fresh: TrainState, plain: list[float]) -> None:
    losses, state = train(setup_on(root, 2, "--trainer.mp", "p=f32,c=bfloat16"), fresh, steps=5)
    assert relative(losses, plain) < 2e-2
    assert losses != plain
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(state.model)} == {"float32"}


@pytest.mark.drawn
def test_llama_trains_in_bfloat16_with_rematerialisation(root: str) -> None:
    """The configuration of accelerators as far as a CPU supports it: all but the kernels."""

    def losses(precision: str) -> list[float]:
        flags = ["--config_path", str(CONFIGS / "llama_tiny.yaml"), "--trainer.mp", precision]
        flags += ["--model.num_layers", "2", "--model.gradient_checkpointing", "dots_saveable"]
        setup = prepare(load_config(flags).config, root, None, jax.devices()[:2])
        state, step, found = setup.fresh_state(), compile_step(setup), []
        for index in range(3):
            state, result = update(setup, step, state, index, setup.batches.batch(index))
            found.append(float(result.loss))
        assert {str(leaf.dtype) for leaf in jax.tree.leaves(state.model)} == {"float32"}
        return found

    narrow, wide = losses("p=f32,c=bfloat16"), losses("f32")
    assert relative(narrow, wide) < 2e-2
    assert narrow != wide


def test_compiled_step_has_no_logits_of_all_positions(root: str) -> None:
    """Checks the optimised program of each of 4 devices, which has 2 of the 8 examples."""
    setup = setup_on(root, 4, "--model.seq_len", "64", "--model.cross_entropy_block_size", "8")
    shapes = re.findall(r"[a-z]+[0-9]+\[([0-9,]+)\]", compile_step(setup).as_text())
    sizes = [tuple(map(int, shape.split(","))) for shape in set(shapes)]
    of_vocab = [math.prod(shape) for shape in sizes if 320 in shape]
    assert 2 * 8 * 320 in of_vocab  # those of a block are there
    assert max(of_vocab) < 2 * 64 * 320


def test_decay_excludes_norms_embeddings_and_biases(root: str) -> None:
    marks = setup_on(root, 1).template.model.decayed()
    decayed = {
        "/".join(str(getattr(part, "name", part)) for part in path)
        for path, mark in jax.tree_util.tree_flatten_with_path(marks)[0]
        if mark
    }
    assert decayed == {f"blocks/stacked/{name}/weight" for name in ("attn/qkv", "attn/proj", "mlp/up", "mlp/down")}


def test_indivisible_axis_is_refused_before_compiling(root: str) -> None:
    with pytest.raises(
        ConfigError, match=r"axis 'embed' of size 60 does not divide over the 8 .* 1 \(1x1\), 2 \(2x1\)"
    ):
        setup_on(root, 8, "--model.hidden_dim", "60")
    with pytest.raises(
        ConfigError, match=r"train_batch_size: 6 does not divide over 4 devices; it does over 1, 2, 3, 6"
    ):
        setup_on(root, 4, "--trainer.train_batch_size", "6")
    with pytest.raises(ConfigError, match=r"model_axis_size: 3 does not divide the 4 devices; use one of 1, 2, 4"):
        setup_on(root, 4, "--trainer.model_axis_size", "3")
    with pytest.raises(ConfigError, match="mapped to 'rows'"):
        setup_on(root, 4, "--trainer.axis_resources", "{mlp: rows}")


def test_per_device_batch_is_the_largest_that_divides(root: str) -> None:
    """A run of any limit trains on any devices that divide its batch, as its migration is planned."""
    for devices, limit, micro in ((4, 64, 1), (2, 3, 2), (1, 7, 2), (1, 1, 8)):
        cut = setup_on(root, devices, "--trainer.per_device_parallelism", str(limit)).cut
        assert (cut.micro, cut.size) == (micro, 8 // micro)
        assert batch_shape(8, devices, limit).accumulation == micro


def losses_of(setup: Setup, fresh: TrainState, tokens: np.ndarray, eos: int | None) -> np.ndarray:
    """Return each token's loss at each position (the last one against the first token)."""
    axes = hax.make_axes(batch=tokens.shape[0], position=tokens.shape[1])
    with setup.layout.active():
        measure = jax.jit(lambda *arguments: token_losses(*arguments, eos=eos).array)
        return np.asarray(measure(put(setup, fresh).model, NamedArray(jnp.asarray(tokens), axes), hax.ones(axes)))


def test_document_attends_only_to_itself(root: str, fresh: TrainState) -> None:
    setup = setup_on(root, 1)
    tokens = np.tile(np.arange(32, dtype=np.int32) + 65, (2, 1))
    tokens[1, :10] = 99
    tokens[:, 10] = 256
    blocked, open_ = (losses_of(setup, fresh, tokens, eos) for eos in (256, None))
    assert np.array_equal(blocked[0, 11:-1], blocked[1, 11:-1])
    assert not np.allclose(open_[0, 11:-1], open_[1, 11:-1], rtol=1e-7)


def test_vocabulary_padding_keeps_loss(root: str, fresh: TrainState) -> None:
    """Padded rows exist and affect no loss: the probabilities of the real tokens sum to one."""
    setup = setup_on(root, 1)
    assert (setup.template.model.Vocab.size, setup.template.model.vocab_size) == (320, 257)
    tokens = np.full((257, 2), 70, np.int32)
    tokens[:, 1] = np.arange(257)
    losses = losses_of(setup, fresh, tokens, None)[:, 0]
    assert np.exp(-losses.astype(np.float64)).sum() == pytest.approx(1.0, abs=1e-5)


def test_reference_losses_are_mesh_independent(root: str, fresh: TrainState) -> None:
    measured, moved = [], jax.tree.map(lambda leaf: leaf * np.float32(1.01), fresh.model)
    for devices in (1, 8):
        setup = setup_on(root, devices)
        reference_losses, batch = compile_reference_losses(setup), setup.batches.batch(4)
        first = reference_losses.measure(put(setup, fresh).model, batch)
        assert first.batch_digest == batch.digest
        assert len(first.losses) == 8
        other = TrainState(moved, fresh.optimizer, fresh.key)
        assert relative(reference_losses.measure(put(setup, other).model, batch).losses, first.losses) > 1e-5
        measured.append(first)
    assert measured[0].sequences == measured[1].sequences
    assert relative(measured[0].losses, measured[1].losses) < 1e-6


def test_evaluation_is_mean_over_every_token(root: str, fresh: TrainState, tmp_path: Path) -> None:
    text = tmp_path / "val.txt"
    text.write_bytes(bytes(range(32, 127)) * 7)  # 20 full sequences and a rest: the last batch is half empty
    setup = setup_on(root, 2, "--data.validation_urls", str(text))
    evaluate = compile_evaluation(setup)
    assert evaluate is not None
    tokens = np.frombuffer(text.read_bytes()[: 20 * 32], np.uint8).astype(np.int32).reshape(20, 32)
    losses = losses_of(setup_on(root, 1), fresh, tokens, 256)
    assert evaluate(put(setup, fresh)) == {"eval/loss": pytest.approx(float(losses[:, :-1].mean()), rel=1e-5)}
    assert setup_on(root, 2).validation is None


def test_evaluation_without_counted_tokens_has_no_loss(
    root: str, fresh: TrainState, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    short, zeros = tmp_path / "short.txt", tmp_path / "zeros.txt"
    short.write_bytes(b"too short")
    zeros.write_bytes(bytes(64))
    assert compile_evaluation(setup_on(root, 1, "--data.validation_urls", str(short))) is None
    assert "data.validation_urls: 10 tokens do not fill one sequence of model.seq_len 32" in caplog.text
    setup = setup_on(root, 1, "--data.validation_urls", str(zeros), "--data.ignore_token_id", "0")
    evaluate = compile_evaluation(setup)
    assert evaluate is not None
    assert evaluate(put(setup, fresh)) == {}, "0 would be a perfect loss"


def test_saved_leaves_have_named_axes_but_counts_and_key(root: str) -> None:
    state = setup_on(root, 1).template
    plain = [
        leaf for leaf in jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, NamedArray))
        if not isinstance(leaf, NamedArray)
    ]  # fmt: skip
    assert sorted(str(leaf.dtype) for leaf in plain) == ["int32", "int32", "key<fry>"]
