"""Checkpoints in a bucket: the same bytes, one commit, pins respected.

The bucket is ``simulators.object_stores.bucket``'s, on loopback; TensorStore's gcs driver and google-cloud-storage are
the real ones.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from midstream_core.attempt.errors import CheckpointError, EngineError
from midstream_core.attempt.save_fence import FenceRejectedError
from midstream_core.records import MANIFEST, Fence, Pin, RunPaths, Store
from midstream_engine.attempt import resume
from midstream_engine.checkpoint.errors import CheckpointCorruptError
from midstream_engine.checkpoint.loading.checkpoint_list import list_checkpoints, newest_complete
from midstream_engine.checkpoint.loading.restore import restore_checkpoint
from midstream_engine.checkpoint.loading.verify import verify_checkpoint
from midstream_engine.checkpoint.saving.retention import Retention
from midstream_engine.checkpoint.stores import bucket_fence
from midstream_engine.checkpoint.stores.bucket_objects import BucketObjects
from midstream_engine.config.keep_policy import KeepEvery, KeepPolicy
from midstream_engine.runtime.attempt_record import claim_attempt, open_attempt
from simulators.object_stores.bucket import BucketServer, bucket_server
from simulators.planted_faults import Fault
from support.checkpoints.checkpoint_states import plain_state, save
from support.engines.engine_runs import Engine

URL = "gs://runs/lab"
CHECKPOINTS = "lab/runs/run/checkpoints/"


@pytest.fixture(scope="module")
def running() -> Iterator[BucketServer]:
    with bucket_server("runs") as server:
        yield server


@pytest.fixture
def server(running: BucketServer, monkeypatch: pytest.MonkeyPatch) -> BucketServer:
    running.buckets["runs"].clear()
    running.faults.clear()
    running.requests.clear()
    for name, value in running.environment.items():
        monkeypatch.setenv(name, value)
    return running


@pytest.fixture
def paths(tmp_path: Path, server: BucketServer) -> RunPaths:
    os.makedirs(tmp_path / "root/runs/run")
    return RunPaths(str(tmp_path / "root"), "run", URL)


def names(paths: RunPaths) -> list[str]:
    return [found.name for found in list_checkpoints(paths) if found.complete]


def put(server: BucketServer, name: str, value: Any) -> None:
    server.put("runs", name, json.dumps(value).encode())


# ----------------------------------------------------------------------------------------------- saving and restoring


def test_bucket_has_the_same_bytes_as_directory(paths: RunPaths, server: BucketServer) -> None:
    there = save(paths, plain_state())
    local = RunPaths(paths.root, "run")
    here = save(local, plain_state())
    assert there.root_digest == here.root_digest
    prefix = f"{CHECKPOINTS}{there.name}/"
    blobs = {name.removeprefix(prefix): blob.data for name, blob in server.blobs("runs", prefix).items()}
    for entry in here.object_entries:
        assert blobs[entry.path] == Path(local.checkpoint(here.name), entry.path).read_bytes(), entry.path
    assert blobs.keys() == {entry.path for entry in here.object_entries} | {MANIFEST}


def test_bucket_prefix_of_run_resolves_to_newest_checkpoint(paths: RunPaths) -> None:
    for step in (5, 7):
        save(paths, plain_state(), step=step)
    BucketObjects(paths.checkpoint("step-9-a001")).write("partial", [memoryview(b"half")])
    newest = paths.checkpoint("step-7-a001")
    for place in (bucket_fence.run_prefix(paths), f"{paths.checkpoints}/", newest):
        assert resume._resolve(place, "trainer.load_checkpoint_path") == newest
    with pytest.raises(EngineError, match=r"trainer\.initialize_from: there is no complete checkpoint at gs://runs/no"):
        resume._resolve("gs://runs/no", "trainer.initialize_from")


def test_bucket_checkpoint_restores_on_any_mesh_and_verifies(paths: RunPaths) -> None:
    saved = save(paths, plain_state())
    assert newest_complete(paths, None) == saved.name
    report = verify_checkpoint(paths.checkpoint(saved.name), deep=True)
    assert (report.flaws, report.unlisted, report.root_digest) == ([], [], saved.root_digest)
    mesh = Mesh(np.array(jax.devices()[:4]), ("data",))
    spread, replicated = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())
    shardings = jax.tree.map(
        lambda leaf: spread if leaf.ndim == 2 and leaf.shape[0] == 512 else replicated, plain_state()
    )
    restored = restore_checkpoint(paths.checkpoint(saved.name), plain_state(), shardings)
    assert restored.root_digest == saved.root_digest
    for found, wanted in zip(jax.tree.leaves(restored.tree), jax.tree.leaves(plain_state()), strict=True):
        assert np.asarray(found).tobytes() == np.asarray(wanted).tobytes()


def test_bucket_restore_of_model_reads_no_other_object(paths: RunPaths, server: BucketServer) -> None:
    large = {**plain_state(), "moments": plain_state()["model"]}
    saved = save(paths, large)
    server.requests.clear()
    template = {"model": large["model"]}
    device = SingleDeviceSharding(jax.devices()[0])
    restored = restore_checkpoint(paths.checkpoint(saved.name), template, device, only="model/")
    assert restored.root_digest == saved.root_digest
    np.testing.assert_array_equal(np.asarray(restored.tree["model"]["wide"]), large["model"]["wide"])
    assert any("arrays%2Fmodel%2Fwide%2Fc" in path for _, path in server.requests)
    assert not [path for _, path in server.requests if "moments" in path]


def test_bucket_retries_failed_and_broken_answers(paths: RunPaths, server: BucketServer) -> None:
    server.faults += [
        Fault("POST", "wide%2Fc", 503),
        Fault("POST", "half%2Fc", "close"),  # written, and the answer lost
        Fault("POST", "zarr.json", 429),
        Fault("POST", "uploadType=multipart", 503),  # the manifest
    ]
    saved = save(paths, plain_state())
    server.faults += [Fault("GET", "wide%2Fc.*alt=media", "truncate"), Fault("GET", "half%2Fc.*alt=media", 503)]
    device = SingleDeviceSharding(jax.devices()[0])
    restored = restore_checkpoint(paths.checkpoint(saved.name), plain_state(), device)
    assert restored.root_digest == saved.root_digest
    assert [fault for fault in server.faults if fault.times] == []


def test_bucket_corrupt_upload_is_found_before_commit(paths: RunPaths, server: BucketServer) -> None:
    store = BucketObjects(paths.checkpoint("step-1-a001"))
    store.prepare(0)
    store.write("a", [memoryview(b"what was meant")])
    store.sync()
    (name,) = server.blobs("runs", CHECKPOINTS)
    server.put("runs", name, b"what was meanT")
    with pytest.raises(CheckpointCorruptError, match="object a: the bucket has 14 bytes with crc32c"):
        store.sync()
    server.delete("runs", name, {})
    with pytest.raises(CheckpointError, match="object a is missing: another process removed it"):
        store.sync()


def test_bucket_verify_names_damage(paths: RunPaths, server: BucketServer) -> None:
    saved = save(paths, plain_state())
    prefix = f"{CHECKPOINTS}{saved.name}/arrays/model/wide/c/0/"
    blob = server.blobs("runs", prefix)[f"{prefix}1"]
    server.put("runs", blob.name, blob.data[:-9] + b"x" + blob.data[-8:])
    server.delete("runs", f"{prefix}0", {})
    flaws = verify_checkpoint(paths.checkpoint(saved.name)).flaws
    assert any("c/0/0: missing" in flaw for flaw in flaws)
    assert any("c/0/1: SHA-256" in flaw for flaw in flaws)
    with pytest.raises(CheckpointCorruptError, match="object arrays/model/wide/c/0"):
        restore_checkpoint(paths.checkpoint(saved.name), plain_state(), SingleDeviceSharding(jax.devices()[0]))


@pytest.mark.parametrize(
    ("url", "fault", "said"),
    [
        ("gs://nowhere/lab", None, "there is no bucket nowhere"),
        (URL, Fault("POST", "uploadType=media", 403, 9), "object arrays/.* cannot be written: PERMISSION_DENIED"),
        (URL, Fault("GET", "b/runs/o.prefix|b/runs/o.projection", 403, 9), "roles/storage.objectUser"),
    ],
)
def test_bucket_refusal_is_one_line(
    paths: RunPaths, server: BucketServer, url: str, fault: Fault | None, said: str
) -> None:
    server.faults += [fault] if fault else []
    with pytest.raises(CheckpointError, match=said) as caught:
        save(RunPaths(paths.root, "run", url), plain_state())
    assert "\n" not in str(caught.value)
    server.faults.clear()
    assert not [name for name in server.blobs("runs", CHECKPOINTS) if name.endswith(MANIFEST)]


# --------------------------------------------------------------------------------------------------------- committing


def run_together(*calls: Callable[[], object]) -> list[BaseException | None]:
    """Run each call on its own thread at the same time; return what each raised."""
    barrier, raised = threading.Barrier(len(calls)), list[BaseException | None]([None] * len(calls))

    def run(number: int) -> None:
        barrier.wait(10)
        try:
            calls[number]()
        except (OSError, CheckpointError) as error:
            raised[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return raised


@pytest.mark.usefixtures("server")
def test_bucket_manifest_race_has_exactly_one_winner(paths: RunPaths) -> None:
    for number in range(10):
        url = paths.checkpoint(f"step-{number}-a001")
        texts = [b"first %d" % number, b"second %d" % number, b"third %d" % number]
        raised = run_together(*(lambda text=text, url=url: BucketObjects(url).commit(MANIFEST, text) for text in texts))
        winners = [text for text, error in zip(texts, raised, strict=True) if error is None]
        assert len(winners) == 1
        assert {type(error) for error in raised} == {type(None), FileExistsError}
        assert BucketObjects(url).get(MANIFEST) == winners[0]


def test_bucket_savers_of_one_name_leave_at_most_one(paths: RunPaths) -> None:
    raised = run_together(*(lambda seed=seed: save(paths, plain_state(seed)) for seed in (1, 2)))
    assert any(isinstance(error, CheckpointError) for error in raised)
    assert names(paths) == [] or verify_checkpoint(paths.checkpoint("step-7-a001")).sound


def test_bucket_savers_of_one_state_leave_it_complete(paths: RunPaths) -> None:
    raised = run_together(*(lambda: save(paths, plain_state()) for _ in range(2)))
    assert None in raised
    report = verify_checkpoint(paths.checkpoint("step-7-a001"))
    assert (report.flaws, report.unlisted) == ([], [])


def test_bucket_save_keeps_different_existing_object(paths: RunPaths, server: BucketServer) -> None:
    save(paths, plain_state(), step=5)
    theirs = {name: blob.data for name, blob in server.blobs("runs", f"{CHECKPOINTS}step-5-a001/arrays").items()}
    server.delete("runs", f"{CHECKPOINTS}step-5-a001/{MANIFEST}", {})
    with pytest.raises(CheckpointError, match=r"exists with other content: .*midstream --clean"):
        save(paths, plain_state(seed=1), step=5)
    assert names(paths) == []
    assert len(theirs) > 3
    assert theirs.items() <= {name: blob.data for name, blob in server.blobs("runs", CHECKPOINTS).items()}.items()
    save(paths, plain_state(), step=5)
    assert verify_checkpoint(paths.checkpoint("step-5-a001")).sound


def test_bucket_commit_with_lost_answer_succeeds(paths: RunPaths, server: BucketServer) -> None:
    server.faults.append(Fault("POST", "multipart", "close"))
    BucketObjects(paths.checkpoint("step-1-a001")).commit(MANIFEST, b"{}")
    assert server.faults[0].times == 0
    assert BucketObjects(paths.checkpoint("step-1-a001")).get(MANIFEST) == b"{}"


@pytest.mark.usefixtures("server")
def test_bucket_partial_save_is_replaced_by_same_attempt(paths: RunPaths) -> None:
    older = save(paths, plain_state(), step=5)
    store = BucketObjects(paths.checkpoint("step-7-a001"))
    store.prepare(0)
    store.write("arrays/left/over", [memoryview(b"half")])
    assert newest_complete(paths, None) == older.name
    assert [found.name for found in list_checkpoints(paths) if not found.complete] == ["step-7-a001"]
    saved = save(paths, plain_state(), step=7)
    assert newest_complete(paths, None) == saved.name
    assert verify_checkpoint(paths.checkpoint(saved.name)).unlisted == []
    assert save(paths, plain_state(), step=7) == saved  # the same state again
    with pytest.raises(CheckpointError, match="never overwritten"):
        save(paths, plain_state(seed=1), step=7)


def test_bucket_fence_stops_an_unreachable_host(paths: RunPaths, server: BucketServer) -> None:
    Fence(1, "source").write(paths.fence)
    save(paths, plain_state(), step=5)
    assert bucket_fence.read_fence(paths)[0] == Fence(1, "source")
    put(server, "lab/runs/run/fence.json", Fence(1, "source").sealed(2, "target", 5).to_json())
    with pytest.raises(FenceRejectedError, match="owned by target under ownership 2, sealed at step 5"):
        save(paths, plain_state(), step=7)
    assert names(paths) == ["step-5-a001"]
    newer = RunPaths(f"{paths.root}-target", "run", URL)
    os.makedirs(newer.dir)
    Fence(1, "source").sealed(2, "target", 5).sealed(3, "third", 6).write(newer.fence)
    save(newer, plain_state(), step=7, attempt=2, epoch=3)
    assert bucket_fence.newest_fence(paths, Fence.read(paths.fence)) == Fence.read(newer.fence)


def test_bucket_attempt_number_is_claimed_for_all_hosts(paths: RunPaths, tmp_path: Path) -> None:
    other = RunPaths(str(tmp_path / "other"), "run", URL)
    for each in (paths, other):
        os.makedirs(each.attempts)
    assert [claim_attempt(each) for each in (paths, other, paths)] == [1, 2, 3]


def test_bucket_run_refuses_fresh_start_beside_its_past(paths: RunPaths, tmp_path: Path) -> None:
    open_attempt(paths.root, "run", {}, URL)
    assert Store.read(paths.store_file) == Store(URL)
    with pytest.raises(EngineError, match=f"checkpoints under {URL} \\(hint: set trainer.checkpointer.base_path"):
        open_attempt(paths.root, "run", {})
    local = RunPaths(str(tmp_path / "local"), "run")
    os.makedirs(local.dir)
    save(local, plain_state())
    with pytest.raises(EngineError, match=r"hint: remove trainer\.checkpointer\.base_path"):
        open_attempt(local.root, "run", {}, URL)


# ---------------------------------------------------------------------------------------------------------- retention


def retention() -> Retention:
    return Retention(KeepPolicy(900.0, (KeepEvery(20),)), 0.0)


def test_bucket_retention_equals_directory_retention(paths: RunPaths, server: BucketServer) -> None:
    for step in (10, 20, 30, 40, 50):
        save(paths, plain_state(), step=step)
    put(server, "lab/runs/run/pins/m.json", Pin("step-30-a001", time.time() + 60).to_json())
    put(server, "lab/runs/run/pins/old.json", Pin("step-10-a001", time.time() - 1).to_json())
    assert retention().prune(paths) == ["step-10-a001"]
    assert names(paths) == ["step-20-a001", "step-30-a001", "step-40-a001", "step-50-a001"]
    assert server.blobs("runs", f"{CHECKPOINTS}step-10") == server.blobs("runs", f"{CHECKPOINTS}.trash") == {}
    server.delete("runs", "lab/runs/run/pins/m.json", {})
    os.makedirs(paths.pins)
    Pin("step-30-a001", time.time() + 60).write(f"{paths.pins}/here.json")  # a host's own pins count too
    assert retention().prune(paths) == []
    put(server, "lab/runs/run/pins/damaged.json", {"nothing": 1})
    with pytest.raises(CheckpointError, match="a pin is unreadable, so no checkpoint is deleted"):
        retention().prune(paths)


def test_bucket_markers_of_folders_are_no_pins(paths: RunPaths, server: BucketServer) -> None:
    for step in (10, 20, 30):
        save(paths, plain_state(), step=step)
    for folder in ("pins/", "checkpoints/", "checkpoints/step-30-a001/"):
        server.put("runs", f"lab/runs/run/{folder}", b"")
    put(server, "lab/runs/run/pins/m.json", Pin("step-10-a001", time.time() + 60).to_json())
    assert bucket_fence.read_pins(paths, time.time()) == {"step-10-a001"}
    assert retention().prune(paths) == []
    assert names(paths) == ["step-10-a001", "step-20-a001", "step-30-a001"]


def set_aside(paths: RunPaths, server: BucketServer, name: str) -> None:
    """Set the manifest aside, as a pruning does that is killed after it moved the manifest."""
    data = server.get("runs", f"{CHECKPOINTS}{name}/{MANIFEST}", {}).data
    server.put("runs", f"{CHECKPOINTS}.trash-{name}/{MANIFEST}", data)
    server.delete("runs", f"{CHECKPOINTS}{name}/{MANIFEST}", {})


def test_bucket_set_aside_manifest_returns_only_for_a_pin(paths: RunPaths, server: BucketServer) -> None:
    for step in (10, 30, 40):
        save(paths, plain_state(), step=step)
    for name in ("step-10-a001", "step-30-a001"):
        set_aside(paths, server, name)
    assert names(paths) == ["step-40-a001"]
    put(server, "lab/runs/run/pins/m.json", Pin("step-30-a001", time.time() + 60).to_json())
    assert retention().prune(paths) == ["step-10-a001"]
    assert names(paths) == ["step-30-a001", "step-40-a001"]
    assert verify_checkpoint(paths.checkpoint("step-30-a001")).sound
    assert server.blobs("runs", f"{CHECKPOINTS}step-10") == server.blobs("runs", f"{CHECKPOINTS}.trash") == {}


def test_bucket_half_deleted_checkpoint_stays_deleted(paths: RunPaths, server: BucketServer) -> None:
    for step in (10, 40):
        save(paths, plain_state(), step=step)
    set_aside(paths, server, "step-10-a001")
    server.delete("runs", f"{CHECKPOINTS}step-10-a001/small.safetensors", {})
    put(server, "lab/runs/run/pins/m.json", Pin("step-10-a001", time.time() + 60).to_json())
    assert retention().prune(paths) == ["step-10-a001"]
    assert server.blobs("runs", f"{CHECKPOINTS}step-10") == server.blobs("runs", f"{CHECKPOINTS}.trash") == {}


# --------------------------------------------------------------------------------------------------------- end to end


@pytest.mark.drawn
def test_bucket_killed_engine_resumes_on_another_host(server: BucketServer, tmp_path: Path) -> None:
    flags = ("--trainer.checkpointer.base_path", URL, "--trainer.checkpointer.keep", "[{every: 5}]")
    cache = str(tmp_path / "compiled")

    def committed() -> list[int]:
        blobs = server.blobs("runs", "lab/runs/r/checkpoints/")
        return sorted(int(name.split("/")[4].split("-")[1]) for name in blobs if name.endswith(f"/{MANIFEST}"))

    others = server.connections()
    with Engine(
        tmp_path / "one", *flags, "--trainer.num_train_steps", "100000", JAX_COMPILATION_CACHE_DIR=cache
    ) as first:
        deadline = time.monotonic() + 120
        while not [step for step in committed() if step >= 10]:
            assert time.monotonic() < deadline, "nothing was committed"
            assert first.process.poll() is None, first.finish()
            time.sleep(0.05)
        first.process.kill()
        first.process.wait(30)
    server.wait_served(others)  # a manifest that was sent is still committed
    newest = committed()[-1]
    assert not (tmp_path / "one/runs/r/checkpoints").exists()
    steps = str(newest + 10)
    with Engine(
        tmp_path / "two", *flags, "--trainer.num_train_steps", steps, JAX_COMPILATION_CACHE_DIR=cache
    ) as second:
        code, log = second.finish()
    assert code == 0, log
    assert f"restored step-{newest}-a001" in log
    rows = [
        json.loads(line)
        for line in Path(second.paths.attempt(2).metrics).read_text().splitlines()
        if "train/loss" in line
    ]
    assert rows[0]["global_step"] == newest
    assert committed()[-1] == newest + 10
    bucket = RunPaths(str(tmp_path), "r", URL)
    newest_name = newest_complete(bucket, None)
    assert newest_name == f"step-{newest + 10}-a002-s2"
    assert verify_checkpoint(bucket.checkpoint(str(newest_name))).sound
