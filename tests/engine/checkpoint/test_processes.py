"""Two processes of two devices save one checkpoint; any number of processes restores it."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from haliax import NamedArray
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from midstream_core.attempt.errors import CheckpointError
from midstream_core.records import RunPaths, SpreadHost
from midstream_engine.checkpoint.__main__ import main as verify
from midstream_engine.checkpoint.boxes import full_box
from midstream_engine.checkpoint.loading.checkpoint_list import list_checkpoints, newest_complete
from midstream_engine.checkpoint.loading.checkpoint_records import read_manifest
from midstream_engine.checkpoint.loading.restore import restore_checkpoint
from midstream_engine.checkpoint.loading.verify import verify_checkpoint
from midstream_engine.checkpoint.saving.save_group import check_owners, owner, straddled
from midstream_engine.checkpoint.saving.snapshot import HostArray
from simulators.object_stores.bucket import bucket_server
from support.checkpoints.checkpoint_process import make_state
from support.checkpoints.checkpoint_states import save
from support.commit_seed import commit_seed
from support.loopback import free_port
from support.paths import TESTS

pytestmark = pytest.mark.drawn

NAME = "step-7-a001"


def together(root: Path, action: str, count: int = 2, store: str = "") -> dict[int, dict[str, Any]]:
    """Run the processes; return the output of those that exited by themselves."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("JAX_", "XLA_"))}
    environment["PYTHONPATH"] = str(TESTS)
    port = free_port()
    words = [sys.executable, str(TESTS / "support/checkpoints/checkpoint_process.py")]
    started = [
        subprocess.Popen(
            [*words, str(process), str(count), str(port), str(root), action, store],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for process in range(count)
    ]
    answers = {}
    try:
        for process, one in enumerate(started):
            out, err = one.communicate(timeout=120)
            if one.returncode == -6 and "JAX distributed service detected fatal errors" in err:
                continue  # jax may end a process that loses process 0 before it can report
            if one.returncode != -9:
                assert one.returncode == 0, err
                answers[process] = json.loads(out.splitlines()[-1])
    finally:
        for one in started:
            one.kill()
            one.wait()
    return answers


def here(devices: int) -> tuple[dict[str, Any], Any]:
    """The same state on the first devices of this process, and its shardings."""
    mesh = Mesh(np.array(jax.devices()[:devices]), ("data",))
    state = make_state(mesh, lambda array, spec: jax.device_put(array, NamedSharding(mesh, spec)))
    leaves = jax.tree.leaves(state, is_leaf=lambda leaf: isinstance(leaf, NamedArray))
    replicated = NamedSharding(mesh, PartitionSpec())
    return state, [leaf.array.sharding if isinstance(leaf, NamedArray) else replicated for leaf in leaves]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunPaths, dict[int, dict[str, Any]]]:
    root = tmp_path_factory.mktemp("together")
    return RunPaths(str(root), "run"), together(root, "save")


def test_two_processes_save_the_same_bytes_as_one(
    saved: tuple[RunPaths, dict[int, dict[str, Any]]], tmp_path: Path
) -> None:
    paths, answers = saved
    assert [answers[process]["devices"] for process in (0, 1)] == [4, 4]
    alone = RunPaths(str(tmp_path), "run")
    manifest = save(alone, here(1)[0], reference_losses=None)
    assert {answer["root_digest"] for answer in answers.values()} == {manifest.root_digest}
    report = verify_checkpoint(paths.checkpoint(NAME), deep=True)
    assert (report.flaws, report.unlisted) == ([], [])
    assert report.manifest.objects == manifest.objects
    for entry in manifest.objects:
        there, here_ = Path(paths.checkpoint(NAME), entry["path"]), Path(alone.checkpoint(NAME), entry["path"])
        assert there.read_bytes() == here_.read_bytes(), entry["path"]


@pytest.mark.parametrize("where", ["all", "0", "1"])
def test_processes_copy_on_devices_each_for_itself(
    where: str, saved: tuple[RunPaths, dict[int, dict[str, Any]]], tmp_path: Path
) -> None:
    """Chunks of one process, of both, and of none."""
    answers = together(tmp_path, f"copied-{where}")
    assert {process for process in (0, 1) if answers[process]["on_devices"]} == (
        {0, 1} if where == "all" else {int(where)}
    )
    assert {answer["root_digest"] for answer in answers.values()} == {saved[1][0]["root_digest"]}
    report = verify_checkpoint(RunPaths(str(tmp_path), "run").checkpoint(NAME), deep=True)
    assert (report.flaws, report.unlisted) == ([], [])


def test_checkpoint_of_two_processes_restores_in_one(
    saved: tuple[RunPaths, dict[int, dict[str, Any]]],
) -> None:
    paths, _ = saved
    state, shardings = here(4)
    restored = restore_checkpoint(paths.checkpoint(NAME), state, shardings)
    assert restored.root_digest == read_manifest(paths.checkpoint(NAME)).root_digest
    for name in ("wide", "replicated", "straddled", "bias"):
        np.testing.assert_array_equal(np.asarray(restored.tree[name].array), np.asarray(state[name].array))


def test_two_processes_restore_only_their_own_chunks(
    saved: tuple[RunPaths, dict[int, dict[str, Any]]],
) -> None:
    paths, answers = saved
    restored = together(Path(paths.root), "restore")
    assert {answer["root_digest"] for answer in restored.values()} == {answers[0]["root_digest"]}
    grid = {entry.name: entry.grid for entry in read_manifest(paths.checkpoint(NAME)).array_entries}
    own = int(np.prod(grid["wide"])) // 2 + int(np.prod(grid["replicated"])) + 1  # the straddled one
    assert [restored[process]["cells"] for process in (0, 1)] == [own, own]


def test_spread_checkpoint_verifies_share_and_lists_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As two hosts leave it: each with its chunks, and the small objects on both."""
    state, shardings = here(1)
    paths = RunPaths(str(tmp_path), "run")
    manifest = save(paths, state, reference_losses=None)
    directory = Path(paths.checkpoint(NAME))
    cells = [entry["path"] for entry in manifest.objects if "/c/" in entry["path"]]
    theirs = set(cells[::2])
    objects = [
        {**entry, "host": ("b" if entry["path"] in theirs else "a") if entry["path"] in cells else ""}
        for entry in manifest.objects
    ]
    hosts = [SpreadHost(host, [number], str(directory)).to_json() for number, host in enumerate("ab")]
    spread = dataclasses.replace(manifest, objects=objects, hosts=hosts, host="a")
    spread.write(str(directory / "manifest.json"))
    for path in theirs:
        (directory / path).unlink()
    report = verify_checkpoint(str(directory))
    assert (report.flaws, report.elsewhere, report.root_digest) == ([], {"b": len(theirs)}, None)
    assert verify(str(directory).split()) == 0
    assert f"{len(theirs)} objects on other hosts ({len(theirs)} on b) were not checked" in capsys.readouterr().err
    with pytest.raises(CheckpointError, match=rf"spread over 2 hosts, and {len(theirs)} of the objects .* on b \("):
        restore_checkpoint(str(directory), state, shardings)
    (directory / cells[1]).unlink()  # one of its own
    assert [flaw.split(": ")[0] for flaw in verify_checkpoint(str(directory)).flaws] == [f"object {cells[1]}"]
    assert spread.collected() == manifest


def test_exited_process_is_named_and_save_stays_incomplete(tmp_path: Path) -> None:
    answers = together(tmp_path, "die")
    assert list(answers) == [0]
    assert re.search(r"process 1 \(host-1, pid \d+\) failed: .*: not saved$", answers[0]["error"])
    assert list_checkpoints(RunPaths(str(tmp_path), "run")) == []


def test_two_processes_save_to_bucket_and_a_kill_keeps_older(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seed = commit_seed()
    victim, writes = (draw := random.Random(seed)).choice([(0, draw.randrange(8)), (1, draw.randrange(4))])
    print(f"seed {seed}: process {victim} is killed after {writes} objects")
    paths = RunPaths(str(tmp_path), "run", "gs://runs/lab")
    os.makedirs(paths.dir)
    with bucket_server("runs") as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        answers = together(tmp_path, "save", store=paths.store)
        fallen = together(tmp_path, f"fall-{victim}-{writes}", store=paths.store)
        assert list(fallen) == [1 - victim] or (victim == 0 and not fallen)
        for answer in fallen.values():
            assert re.search(rf"process {victim} \(host-{victim}, pid \d+\) failed: ", answer["error"])
        assert newest_complete(paths, None) == NAME
        assert [found.name for found in list_checkpoints(paths) if found.complete] == [NAME]
        report = verify_checkpoint(paths.checkpoint(NAME), deep=True)
        assert (report.flaws, report.unlisted) == ([], [])
        state, shardings = here(4)
        restored = restore_checkpoint(paths.checkpoint(NAME), state, shardings)
        assert {answer["root_digest"] for answer in answers.values()} == {restored.root_digest}
        for name in ("wide", "replicated", "straddled", "bias"):
            np.testing.assert_array_equal(np.asarray(restored.tree[name].array), np.asarray(state[name].array))


def test_replicated_chunks_are_divided_and_unheld_are_refused() -> None:
    box = full_box((512, 2048))
    halves = {process: [((0, 512), (1024 * process, 1024 * (process + 1)))] for process in (0, 1)}
    replicated = HostArray("x", ("mlp", "embed"), (512, 2048), "float32", [], {0: [box], 1: [box]})
    cells = [((0, 512), (0, 1024)), ((0, 512), (1024, 2048))]
    assert [owner(replicated, number, cell) for number, cell in enumerate(cells)] == [0, 1]
    split = HostArray("x", ("mlp", "embed"), (512, 2048), "float32", [], halves)
    assert [owner(split, number, cell) for number, cell in enumerate(cells)] == [0, 1]
    check_owners([replicated, split])
    rows = {process: [((256 * process, 256 * (process + 1)), (0, 2048))] for process in (0, 1)}
    between = HostArray("x", ("mlp", "embed"), (512, 2048), "float32", [], rows)
    assert straddled(between) == cells
    check_owners([between] * 256)
    with pytest.raises(CheckpointError, match=r"x: no process has all of its chunk at \[0, 0\], and .* 1024 MiB"):
        check_owners([between] * 257)
