"""Checkpoints of other trainers in a bucket: surveyed without a copy, and copied to be converted."""

from __future__ import annotations

import dataclasses
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from midstream.errors import MidstreamError, UsageError
from midstream.fleet.fleet import Fleet, LocalHostConfig
from midstream.hosts.local_host import LocalHost
from midstream.migrate.planning.import_plan import read_survey
from midstream_core.attempt.errors import EngineError
from midstream_core.object_store import retries
from midstream_core.object_store.open_bucket import close_clients
from midstream_engine import convert
from midstream_engine.interop.bucket_source import fetch
from midstream_host.trainers import checkpoint_survey
from midstream_host.trainers.checkpoint_survey import CheckpointSurvey
from simulators.object_stores.bucket import BucketServer, bucket_server
from simulators.object_stores.s3_server import S3Server, s3_server
from simulators.planted_faults import Fault
from support.paths import FIXTURES

HERE = LocalHost("here", LocalHostConfig())
SOURCES = ("neox/pythia-fp32-z1-dp2", "levanter/data/run", "hf/gpt2")


class Store:
    """A service with the bucket ``my-bucket``."""

    def __init__(self, scheme: str, server: BucketServer | S3Server) -> None:
        self.server, self.url = server, f"{scheme}://my-bucket/bucket"
        self.object = r"GET", (r"/o/.*alt=media" if scheme == "gs" else r"my-bucket/bucket/.*")

    def upload(self, name: str, folder: Path = FIXTURES) -> str:
        """Store a fixture, or what ``folder`` has; return its URL."""
        source = folder / name
        for path in source.rglob("*"):
            if path.is_file():
                self.server.put("my-bucket", f"bucket/{name}/{path.relative_to(source)}", path.read_bytes())
        return f"{self.url}/{name}"


@pytest.fixture(params=["gs", "s3"])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setattr(retries, "FIRST_PAUSE", 0.01)
    with bucket_server("my-bucket") if request.param == "gs" else s3_server("my-bucket") as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        close_clients()
        yield Store(request.param, server)
        close_clients()


@pytest.fixture
def stepwise(tmp_path: Path) -> Path:
    """A folder with the runs ``titan`` and ``maxtext``, their configurations, and an older step of each."""
    for name, archive in (("titan", "torchtitan/step-4.tar.gz"), ("maxtext", "maxtext/checkpoint.tar.gz")):
        with tarfile.open(FIXTURES / archive) as opened:
            opened.extractall(tmp_path / "runs" / name, filter="data")
    shutil.copy(FIXTURES / "torchtitan" / "config.json", tmp_path / "runs" / "titan")
    shutil.copy(FIXTURES / "maxtext" / "train.log", tmp_path / "runs" / "maxtext")
    shutil.copytree(tmp_path / "runs" / "titan" / "step-4", tmp_path / "runs" / "titan" / "step-3")
    steps = tmp_path / "runs" / "maxtext" / "checkpoints"
    shutil.copytree(steps / "2", steps / "1")
    return tmp_path / "runs"


def facts(survey: CheckpointSurvey) -> dict[str, Any]:
    """Return a survey without the names of its directory."""
    found = {**dataclasses.asdict(survey), "directory": Path(survey.directory).name}
    found["looked"] = [Path(each).name for each in survey.looked]
    return {**found, "configs": list(survey.configs.values())}


@pytest.mark.parametrize("name", SOURCES)
def test_bucket_survey_equals_directory_survey(store: Store, name: str) -> None:
    url = store.upload(name)
    found = read_survey(Fleet(), HERE, url, "")
    assert facts(found) == facts(checkpoint_survey.survey(path=str(FIXTURES / name)))
    assert found.directory.startswith(url)


@pytest.mark.parametrize(("name", "config"), [("titan", ""), ("maxtext", "train.log")])
def test_stepwise_checkpoint_is_surveyed_in_a_bucket(store: Store, stepwise: Path, name: str, config: str) -> None:
    url = store.upload(name, stepwise)
    found = read_survey(Fleet(), HERE, url, config and f"{url}/{config}")
    there = checkpoint_survey.survey(path=str(stepwise / name), config=config and str(stepwise / name / config))
    assert facts(found) == facts(there)
    assert found.step == {"titan": 4, "maxtext": 3}[name]


@pytest.mark.parametrize("name", ["titan", "maxtext"])
def test_newest_step_alone_is_copied_and_converted(
    store: Store, stepwise: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of MaxText the newest that was finished: one that is being written has no time of its commit."""
    unfinished = "bucket/maxtext/checkpoints/7/_CHECKPOINT_METADATA"
    store.server.put("my-bucket", unfinished, b'{"commit_timestamp_nsecs": null}')
    url = store.upload(name, stepwise)
    path, _ = fetch(url, str(tmp_path / "copy"))
    there = {file.relative_to(path).as_posix() for file in Path(path).rglob("*") if file.is_file()}
    older, newest = (("step-3", "step-4"), ("checkpoints/1", "checkpoints/2"))[name == "maxtext"]
    assert any(file.startswith(newest) for file in there)
    assert not any(file.startswith((older, "checkpoints/7")) for file in there)
    config = ["--config", f"{url}/train.log"] if name == "maxtext" else []
    assert convert.main([f"{url}/{newest}", str(tmp_path / "run"), *config]) == 0
    log = [word.replace(url, str(stepwise / name)) for word in config]
    assert convert.main([str(stepwise / name), str(tmp_path / "other"), *log]) == 0
    digests = [line.split("root digest ")[1].split(";")[0] for line in capsys.readouterr().out.splitlines()]
    assert digests[0] == digests[1]


def test_damaged_commit_is_no_evidence_for_an_older_step(store: Store, stepwise: Path, tmp_path: Path) -> None:
    store.server.put("my-bucket", "bucket/maxtext/checkpoints/7/_CHECKPOINT_METADATA", b'{"commit_time')
    url = store.upload("maxtext", stepwise)
    with pytest.raises(MidstreamError, match="checkpoints/7/_CHECKPOINT_METADATA: not JSON"):
        read_survey(Fleet(), HERE, url, "")
    with pytest.raises(EngineError, match="checkpoints/7/_CHECKPOINT_METADATA: not JSON"):
        fetch(url, str(tmp_path / "copy"))


@pytest.mark.parametrize("name", SOURCES)
def test_bucket_checkpoint_is_copied_and_only_once(store: Store, name: str, tmp_path: Path) -> None:
    url = store.upload(name)
    store.server.faults += [Fault(*store.object, "truncate"), Fault(*store.object, 503), Fault(*store.object, "drop")]
    path, _ = fetch(url, str(tmp_path / "copy"))
    assert [fault for fault in store.server.faults if fault.times] == []
    copied = {file.relative_to(path): file.read_bytes() for file in Path(path).rglob("*") if file.is_file()}
    source = FIXTURES / name
    assert copied == {file.relative_to(source): file.read_bytes() for file in source.rglob("*") if file.is_file()}
    lines = (tmp_path / "copy" / "fetched.jsonl").read_text()
    assert fetch(url, str(tmp_path / "copy")) == (path, "")
    assert (tmp_path / "copy" / "fetched.jsonl").read_text() == lines, "no object was read again"


@pytest.mark.parametrize("checksums", [True, False])
def test_object_that_changes_on_its_way_is_read_again(store: Store, tmp_path: Path, checksums: bool) -> None:
    """A service without checksums is read until two readings are the same."""
    if isinstance(store.server, S3Server):
        store.server.checksums = checksums
    url = store.upload("hf/gpt2")
    path = r"model\.safetensors" + ("" if isinstance(store.server, S3Server) else ".*alt=media")
    store.server.faults.append(Fault("GET", path, "garble"))
    found, _ = fetch(url, str(tmp_path / "copy"))
    assert [fault for fault in store.server.faults if fault.times] == []
    source = FIXTURES / "hf/gpt2"
    assert all((Path(found) / each.name).read_bytes() == each.read_bytes() for each in source.iterdir())


def test_object_unlike_its_checksum_is_refused(store: Store, tmp_path: Path) -> None:
    url = store.upload("hf/gpt2")
    store.server.faults.append(Fault(store.object[0], r".*safetensors", "garble", times=99))
    with pytest.raises(EngineError, match=r"model\.safetensors: read 3 times, its crc32c? is another than the service"):
        fetch(url, str(tmp_path / "copy"))
    assert not list(tmp_path.rglob("model.safetensors"))


def test_newest_checkpoint_alone_is_copied_from_a_bucket(store: Store, tmp_path: Path) -> None:
    """Those of a run that are older, or not complete, stay where they are; so does a neighbour's configuration."""
    url = store.upload("levanter/data/run")
    for path in ("step-1/metadata.json", "step-1/model/x", "step-9/model/x"):
        store.server.put("my-bucket", f"bucket/levanter/data/run/{path}", b"{}")
    path, _ = fetch(url, str(tmp_path / "copy"))
    assert sorted(each.name for each in Path(path).iterdir() if each.name.startswith("step-")) == ["step-3"]
    inner, _ = fetch(f"{url}/step-3", str(tmp_path / "inner"))
    assert (Path(inner).parent / "config.yaml").read_bytes() == (Path(path) / "config.yaml").read_bytes()
    _, config = fetch(f"{url}/step-3", str(tmp_path / "named"), f"{url}/config.yaml")
    assert Path(config).read_bytes() == (Path(path) / "config.yaml").read_bytes()


def test_bucket_source_that_cannot_be_read_is_one_line(store: Store, tmp_path: Path) -> None:
    scheme = store.url.partition(":")[0]
    with pytest.raises(MidstreamError, match="none cannot be read"):
        read_survey(Fleet(), HERE, f"{store.url}/none", "")
    with pytest.raises(MidstreamError, match="there is no bucket nobody"):
        read_survey(Fleet(), HERE, f"{scheme}://nobody/x", "")
    with pytest.raises(UsageError, match="not in the checkpoint's bucket"):
        read_survey(Fleet(), HERE, f"{store.url}/x", "/home/me/config.yaml")
    with pytest.raises(EngineError, match="none: no such directory in the bucket"):
        fetch(f"{store.url}/none", str(tmp_path / "copy"))
    with pytest.raises(EngineError, match="there is no bucket nobody"):
        fetch(f"{scheme}://nobody/x", str(tmp_path / "copy"))
    store.server.put("my-bucket", "bucket/evil/config.json", b"{}")
    store.server.put("my-bucket", "bucket/evil/../../../x", b"{}")
    with pytest.raises(EngineError, match="not that of a file"):
        fetch(f"{store.url}/evil", str(tmp_path / "copy"))
    assert not (tmp_path / "copy").exists()


def test_converter_reads_a_bucket_and_removes_its_copy(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = store.upload("hf/gpt2")
    expected = tmp_path / "expected"
    shutil.copytree(FIXTURES / "hf/gpt2", tmp_path / "gpt2")
    assert convert.main([str(tmp_path / "gpt2"), str(expected)]) == 0
    assert convert.main([url, str(tmp_path / "model")]) == 0
    digests = [line.split("root digest ")[1].split(";")[0] for line in capsys.readouterr().out.splitlines()]
    assert digests[0] == digests[1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["expected", "gpt2", "model"]
