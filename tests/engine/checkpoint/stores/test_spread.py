"""A run on two hosts without a shared file system: each stores its share of a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import haliax as hax
import jax
import numpy as np
import pytest
from haliax import NamedArray
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from midstream.fleet.fleet import LocalHostConfig
from midstream.hosts.local_host import LocalHost
from midstream.transfer.endpoint import Endpoint
from midstream.transfer.multi_host_copy import collect_objects
from midstream_core import records
from midstream_engine.checkpoint.chunk_grid import chunks_of
from midstream_engine.checkpoint.loading.checkpoint_list import list_checkpoints
from midstream_engine.checkpoint.loading.checkpoint_records import read_manifest
from midstream_engine.checkpoint.loading.restore import restore_checkpoint
from midstream_engine.checkpoint.loading.verify import verify_checkpoint
from support.engines.engine_processes import Together, rows

pytestmark = [pytest.mark.filterwarnings("ignore:jax.core.is_constant_dim is deprecated:DeprecationWarning")]
# Wide enough for chunked arrays: two chunks, one for each host.
WIDE = ["--model.hidden_dim", "384", "--model.num_heads", "4", "--model.seq_len", "16"]


def template_of(manifest: records.Manifest) -> dict[str, Any]:
    """A tree with the names, axes, shapes and dtypes of a checkpoint's arrays."""
    tree: dict[str, Any] = {}
    for entry in manifest.array_entries:
        *folders, leaf = entry.name.split("/")
        inner = tree
        for folder in folders:
            inner = inner.setdefault(folder, {})
        axes = tuple(hax.Axis(name, length) for name, length in zip(entry.axes, entry.shape, strict=True))
        inner[leaf] = NamedArray(jax.ShapeDtypeStruct(tuple(entry.shape), entry.dtype), axes)  # pyright: ignore
    return tree


@pytest.mark.slow  # a minute
@pytest.mark.timeout(1200)
def test_spread_run_resumes_after_kill_and_is_collected(tmp_path: Path) -> None:
    roots = [tmp_path / "a", tmp_path / "b"]
    flags = [*WIDE, "--trainer.checkpointer.keep", "[{every: 3}]"]
    flags += ["--trainer.jax_compilation_cache_dir", str(tmp_path / "compiled")]
    with Together(roots, *flags, "--trainer.num_train_steps", "100000") as first:
        first.until(first.has_saved(1), 480)
        first.processes[1].kill()
        (code, log), _ = first.finish(480)
    assert code != 0
    assert "process 1 (host-b, pid " in log
    newest = [found.step for found in list_checkpoints(first.paths[0]) if found.complete][-1]

    with Together(roots, *flags, "--trainer.num_train_steps", str(newest + 2)) as second:
        for code, log in second.finish(480):
            assert code == 0, log
    restored = records.Restore.read(second.paths[0].attempt(2).restore)
    assert (restored.step, restored.root_digest) == (newest, restored.expected_root_digest)
    assert [row["global_step"] for row in rows(second.paths[0], 2)] == [newest, newest + 1]

    last = records.checkpoint_name(newest + 2, 2)
    shares = [verify_checkpoint(paths.checkpoint(last)) for paths in second.paths]
    assert [share.flaws for share in shares] == [[], []]
    assert [list(share.elsewhere) for share in shares] == [["host-b"], ["host-a"]]
    assert all(share.elsewhere[host] > 0 for share, host in zip(shares, ("host-b", "host-a"), strict=True))

    hosts = {f"host-{root.name}": LocalHost(root.name, LocalHostConfig(root=str(root))) for root in roots}
    third = LocalHost("c", LocalHostConfig(root=str(tmp_path / "c")))
    target = str(tmp_path / "c/runs/r/checkpoints" / last)
    collect_objects(hosts, Endpoint(hosts["host-a"], second.paths[0].checkpoint(last)), Endpoint(third, target))
    collected = verify_checkpoint(target, deep=True)
    assert (collected.flaws, collected.unlisted, collected.elsewhere) == ([], [], {})
    assert collected.root_digest == shares[0].manifest.root_digest == shares[1].manifest.root_digest

    manifest = read_manifest(target)
    replicated = NamedSharding(Mesh(np.array(jax.devices()[:4]), ("data",)), PartitionSpec())
    state = restore_checkpoint(target, template_of(manifest), replicated)
    assert state.root_digest == collected.root_digest
    assert any(len(list(chunks_of(entry.shape, entry.grid))) > 1 for entry in manifest.array_entries if entry.grid)
