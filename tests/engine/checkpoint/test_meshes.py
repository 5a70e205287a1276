"""A state has the same bytes on every mesh, and any mesh reads what another wrote."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from haliax import NamedArray
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from midstream_core.attempt.errors import CheckpointError
from midstream_core.records import Manifest, RunPaths
from midstream_engine.checkpoint.array_names import flatten
from midstream_engine.checkpoint.errors import CheckpointCorruptError, CheckpointMismatchError
from midstream_engine.checkpoint.host_buffers import BufferPool
from midstream_engine.checkpoint.loading.array_assembly import ArrayAssembly
from midstream_engine.checkpoint.loading.restore import Restored, _chunk_tasks, restore_checkpoint
from midstream_engine.checkpoint.stores.directory_objects import DirectoryObjects
from support.checkpoints.checkpoint_states import save

Layers, Embed, Mlp, Vocab = (
    hax.Axis("layers", 2),
    hax.Axis("embed", 768),
    hax.Axis("mlp", 1536),
    hax.Axis("vocab", 1344),
)


def make_state() -> dict[str, Any]:
    """9 MiB in four chunks along embed, 2 MiB of bf16, 4 MiB in two, and small sharded arrays."""
    a, b, c, d = jax.random.split(jax.random.key(3), 4)
    return {
        "up": hax.random.normal(a, (Layers, Mlp, Embed)),
        "table": hax.random.normal(b, (Vocab, Embed)),
        "half": hax.random.normal(c, (Vocab, Embed)).astype(jnp.bfloat16),
        "bias": hax.random.normal(d, (Layers, Mlp)),
        "opt": (jnp.array(3, jnp.int32), {"scale": jnp.linspace(0, 1, 64)}),
        "key": jax.random.key(11),
        "activation": jax.nn.gelu,
    }


@dataclasses.dataclass(frozen=True)
class Layout:
    """A mesh of ``data x model`` devices, and which axes are mapped to its two axes."""

    data: int
    model: int = 1
    fsdp: str = "embed"
    tensor: str = "mlp"

    def shardings(self, template: Any) -> Any:
        devices = np.array(jax.devices()[: self.data * self.model]).reshape(self.data, self.model)
        mesh = Mesh(devices, ("data", "model"))

        def place(leaf: Any) -> NamedSharding | None:
            if isinstance(leaf, NamedArray):
                names = {self.fsdp: "data", self.tensor: "model"}
                return NamedSharding(mesh, PartitionSpec(*(names.get(axis.name) for axis in leaf.axes)))
            return NamedSharding(mesh, PartitionSpec()) if hasattr(leaf, "dtype") else None

        return jax.tree_util.tree_map(place, template, is_leaf=lambda leaf: isinstance(leaf, NamedArray))


LAYOUTS = [
    Layout(1),
    Layout(2),
    Layout(8),
    Layout(3),  # crosses chunks: 768/3 is no multiple of 768/4
    Layout(2, 4),
    Layout(4, 2, fsdp="mlp", tensor="embed"),
    Layout(4, 2, fsdp="vocab", tensor="layers"),
]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunPaths, Manifest, dict[str, Any]]:
    paths = RunPaths(str(tmp_path_factory.mktemp("original")), "run")
    state = make_state()
    return paths, save(paths, state), state


def restore(paths: RunPaths, manifest: Manifest, layout: Layout) -> Restored:
    template = eqx.filter_eval_shape(make_state)
    return restore_checkpoint(paths.checkpoint(manifest.name), template, layout.shardings(template))


def contents(directory: str) -> dict[str, bytes]:
    root = Path(directory)
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_resave_on_another_mesh_gives_the_same_bytes(
    original: tuple[RunPaths, Manifest, dict[str, Any]], layout: Layout, tmp_path: Path
) -> None:
    paths, manifest, state = original
    restored = restore(paths, manifest, layout)
    assert restored.root_digest == restored.manifest.root_digest == manifest.root_digest
    for name, array in flatten(restored.tree).items():
        np.testing.assert_array_equal(np.asarray(array.value), np.asarray(flatten(state)[name].value), err_msg=name)

    there = RunPaths(str(tmp_path), "run")
    again = save(there, restored.tree)
    assert again.root_digest == manifest.root_digest
    before, after = contents(paths.checkpoint(manifest.name)), contents(there.checkpoint(again.name))
    assert before.keys() == after.keys()
    assert {path for path in before if before[path] != after[path]} <= {"manifest.json"}  # which has the time in it
    assert dataclasses.replace(again, created=manifest.created) == manifest


def test_restored_arrays_have_requested_shardings(original: tuple[RunPaths, Manifest, dict[str, Any]]) -> None:
    paths, manifest, _ = original
    layout = Layout(4, 2)
    tree = restore(paths, manifest, layout).tree
    assert tree["up"].array.sharding.shard_shape(tree["up"].array.shape) == (2, 1536 // 2, 768 // 4)
    assert {shard.data.shape for shard in tree["up"].array.addressable_shards} == {(2, 768, 192)}
    assert tree["key"].dtype == jax.random.key(0).dtype
    assert len(tree["key"].sharding.device_set) == 8
    assert tree["activation"] is jax.nn.gelu


def test_restored_state_may_be_donated(
    original: tuple[RunPaths, Manifest, dict[str, Any]],
) -> None:
    """The arrays own their memory: an update in place affects no other array and no later read."""
    paths, manifest, state = original
    tree = restore(paths, manifest, Layout(2)).tree
    expected = np.asarray(state["up"].array) + 1
    update = jax.jit(lambda x: x + 1, donate_argnums=0)
    np.testing.assert_array_equal(np.asarray(update(tree["up"].array)), expected)
    assert restore(paths, manifest, Layout(1)).root_digest == manifest.root_digest


def test_different_state_has_different_digest(
    original: tuple[RunPaths, Manifest, dict[str, Any]], tmp_path: Path
) -> None:
    _, manifest, state = original
    flipped = np.asarray(state["bias"].array).copy()
    flipped.view(np.uint32)[0, 0] ^= 1
    other = dict(state, bias=NamedArray(jnp.asarray(flipped), state["bias"].axes))
    assert save(RunPaths(str(tmp_path), "run"), other).root_digest != manifest.root_digest


def test_indivisible_mesh_is_refused_before_reading(
    original: tuple[RunPaths, Manifest, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, manifest, _ = original
    monkeypatch.setattr("midstream_engine.checkpoint.loading.restore.read_object", None)
    with pytest.raises(CheckpointError) as caught:
        restore(paths, manifest, Layout(5))
    assert str(caught.value).endswith(
        "cannot be laid out on this mesh: half: its axis embed=768 does not divide over 5 devices (data); "
        "1, 2, 3, 4, 6, 8 would divide every array"
    )
    monkeypatch.undo()
    assert restore(paths, manifest, Layout(6)).root_digest == manifest.root_digest


def counted_reads(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Count the bytes read from now on, by object."""
    reads: dict[str, int] = {}
    original = DirectoryObjects.read

    def read(store: DirectoryObjects, path: str, into: Any, each: Any, crc32c: str = "") -> int:
        count = original(store, path, into, each, crc32c)
        reads[path] = reads.get(path, 0) + count
        return count

    monkeypatch.setattr(DirectoryObjects, "read", read)
    return reads


@pytest.mark.parametrize("layout", [Layout(1), Layout(8), Layout(2, 4), Layout(4, 2, fsdp="vocab")])
def test_restore_reads_each_object_once_on_any_mesh(
    original: tuple[RunPaths, Manifest, dict[str, Any]], layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, manifest, _ = original
    reads = counted_reads(monkeypatch)
    restore(paths, manifest, layout)
    assert reads == {entry.path: entry.size for entry in manifest.object_entries}


def test_process_reads_only_chunks_of_its_devices(
    original: tuple[RunPaths, Manifest, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, manifest, _ = original
    directory = paths.checkpoint(manifest.name)
    (entry,) = [entry for entry in manifest.array_entries if entry.name == "up"]
    assert entry.grid == [1, 1, 4]
    mesh = Mesh(np.array(jax.devices()[:4]), ("data",))
    sharding = NamedSharding(mesh, PartitionSpec(None, None, "data"))
    shares = sharding.addressable_devices_indices_map(tuple(entry.shape))
    mine = dict(list(shares.items())[1:2])  # as where the other three devices belong to other processes
    monkeypatch.setattr(NamedSharding, "addressable_devices_indices_map", lambda sharding, shape: mine)
    reads, hashes = counted_reads(monkeypatch), dict[str, str]()
    objects = {found.path: found for found in manifest.object_entries}
    tasks = _chunk_tasks(
        DirectoryObjects(directory), entry, objects, ArrayAssembly(entry, sharding), BufferPool(), hashes
    )
    for _, read in tasks:
        read()
    assert reads == {"arrays/up/c/0/0/1": objects["arrays/up/c/0/0/1"].size}
    assert hashes == {path: objects[path].sha256 for path in entry.objects if not path.endswith("zarr.json")}


def trained_state() -> dict[str, Any]:
    """A model and an optimizer, each with a chunked array and a small one."""
    state = make_state()
    model = {"up": state["up"], "bias": NamedArray(state["bias"].array[:, :64], (Layers, Mlp.resize(64)))}
    return {"model": model, "optimizer": {"mu": model, "count": jnp.array(3, jnp.int32)}, "key": state["key"]}


def model_of(paths: RunPaths, manifest: Manifest, layout: Layout, **changed: Any) -> Restored:
    template = {"model": {**eqx.filter_eval_shape(trained_state)["model"], **changed}}
    return restore_checkpoint(paths.checkpoint(manifest.name), template, layout.shardings(template), only="model/")


@pytest.mark.parametrize("layout", [Layout(1), Layout(4, 2)])
def test_partial_restore_reads_only_its_objects(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, state = RunPaths(str(tmp_path), "run"), trained_state()
    manifest = save(paths, state)
    reads = counted_reads(monkeypatch)
    restored = model_of(paths, manifest, layout)
    sizes = {entry.path: entry.size for entry in manifest.object_entries}
    shared = {"train.json", "small.safetensors"}
    assert reads == {path: size for path, size in sizes.items() if path in shared or path.startswith("arrays/model/")}
    assert sum(reads.values()) < sum(sizes.values()) * 0.51
    assert restored.root_digest == manifest.root_digest
    assert flatten(restored.tree).keys() == {"model/up", "model/bias"}
    for name, array in flatten(restored.tree).items():
        np.testing.assert_array_equal(np.asarray(array.value), np.asarray(flatten(state)[name].value), err_msg=name)


def test_partial_restore_tolerates_only_loss_of_the_rest(tmp_path: Path) -> None:
    paths = RunPaths(str(tmp_path), "run")
    manifest = save(paths, trained_state())
    directory = Path(paths.checkpoint(manifest.name))
    for path in directory.glob("arrays/optimizer/**/*"):
        if path.is_file():
            path.unlink()
    assert model_of(paths, manifest, Layout(2)).root_digest == manifest.root_digest
    template = eqx.filter_eval_shape(trained_state)
    with pytest.raises(CheckpointCorruptError, match=r"object arrays/optimizer/mu/up/.*: missing"):
        restore_checkpoint(str(directory), template, Layout(2).shardings(template))
    cell = directory / "arrays/model/up/c/0/0/1"
    content = bytearray(cell.read_bytes())
    content[100] ^= 1
    cell.write_bytes(content)
    with pytest.raises(CheckpointCorruptError, match=r"object arrays/model/up/c/0/0/1: SHA-256"):
        model_of(paths, manifest, Layout(2))


def test_partial_restore_refuses_mismatch_with_a_diff(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = RunPaths(str(tmp_path), "run")
    manifest = save(paths, {**trained_state(), "model": {**trained_state()["model"], "old": jnp.zeros(2)}})
    monkeypatch.setattr("midstream_engine.checkpoint.loading.restore.read_object", None)
    plain = jax.ShapeDtypeStruct((2,), jnp.float32)
    with pytest.raises(CheckpointMismatchError) as caught:
        model_of(paths, manifest, Layout(1), new=plain, bias=plain)
    assert caught.value.missing == ["model/new"]
    assert caught.value.extra == ["model/old"]
    assert [difference.name for difference in caught.value.different] == ["model/bias"]
    template = eqx.filter_eval_shape(trained_state)
    with pytest.raises(ValueError, match=r"the template has key, which does not begin with 'model/'"):
        restore_checkpoint(paths.checkpoint(manifest.name), template, Layout(1).shardings(template), only="model/")
