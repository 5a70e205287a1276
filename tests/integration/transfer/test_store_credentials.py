"""Credentials of requests to a bucket, by the fleet file's ``stores:``."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from midstream.check.target_checks import check_target
from midstream.errors import MidstreamError, UsageError
from midstream.fleet.fleet import LocalHostConfig
from midstream.fleet.fleet_file import parse_fleet
from midstream.hosts.host_pool import HostPool, open_host
from midstream.hosts.local_host import LocalHost
from midstream.launch.launch_request import LaunchRequest
from midstream.launch.launch_run import launch_run
from midstream.launch.start_attempt import Launch, engine_environment
from midstream.stores.bucket_access import access_for
from midstream.stores.host_identity import identity_problem
from midstream.transfer.copy_tree import copy_tree
from midstream.transfer.endpoint import Endpoint, bucket_endpoint
from midstream_core.attempt.errors import CheckpointError
from midstream_core.object_store.access import VARIABLE, Access
from midstream_core.object_store.open_bucket import engine_bucket, open_bucket
from midstream_engine.checkpoint.stores import open_checkpoints, open_store
from midstream_engine.data.sources import bucket as buckets
from midstream_engine.runtime.program_files import ProgramBucket, ProgramFiles
from simulators.google.identities import Identities
from simulators.google.metadata import MetadataServer
from simulators.object_stores.bucket import BucketServer, bucket_server
from simulators.planted_faults import Fault
from simulators.sshd import Lab
from support.checkpoints.trees import assert_same_tree, files, write_checkpoint
from support.command_line import TINY, midstream, refused

pytestmark = pytest.mark.drawn

URL = "gs://runs/ours"
OPERATOR, WRITER = "operator@lab.iam.gserviceaccount.com", "writer@lab.iam.gserviceaccount.com"


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[BucketServer, Identities]]:
    """Serve a bucket and tokens; this machine has no credentials yet."""
    with bucket_server("runs") as server, Identities() as identities:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
        monkeypatch.setenv("MIDSTREAM_IAM_ENDPOINT", identities.address)
        yield server, identities


def copied(entry: str, tmp_path: Path) -> None:
    """Copy a tree to the store and back with the fleet file's ``entry`` for it."""
    fleet = parse_fleet(f"stores: {{ours: {{url: {URL}, {entry}}}}}")
    here = LocalHost("here", LocalHostConfig(root=str(tmp_path / "root")))
    write_checkpoint(tmp_path / "source", random.Random(1), size=20_000)
    there = bucket_endpoint(f"{URL}/tree", access_for(fleet, f"{URL}/tree"))
    copy_tree(Endpoint(here, str(tmp_path / "source")), there)
    copy_tree(there, Endpoint(here, str(tmp_path / "back")))
    assert_same_tree(tmp_path / "back", tmp_path / "source")


def test_anonymous_credentials(google: tuple[BucketServer, Identities], tmp_path: Path) -> None:
    server, identities = google
    server.admits = ""
    copied("credentials: anonymous", tmp_path)
    assert identities.given == []


def test_service_account_key_file(google: tuple[BucketServer, Identities], tmp_path: Path) -> None:
    server, identities = google
    key = identities.service_account(tmp_path / "key.json", OPERATOR)
    server.admits = f"token-of-{OPERATOR}"
    copied(f"credentials: {key}", tmp_path)
    assert set(identities.given) == {f"token-of-{OPERATOR}"}


def test_token_server_that_does_not_answer_is_called_again(
    google: tuple[BucketServer, Identities], tmp_path: Path
) -> None:
    server, identities = google
    key = identities.service_account(tmp_path / "key.json", OPERATOR)
    server.admits = f"token-of-{OPERATOR}"
    client = open_bucket(URL, Access(credentials=str(key)))
    identities.failing = 8  # google-auth calls it six times
    client.put("object", b"data")
    assert client.get("object")[0] == b"data"
    assert identities.failing == 0


def test_application_default_credentials(
    google: tuple[BucketServer, Identities], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, identities = google
    key = identities.service_account(tmp_path / "adc.json", OPERATOR)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key))
    server.admits = f"token-of-{OPERATOR}"
    copied("credentials: default", tmp_path)
    assert set(identities.given) == {f"token-of-{OPERATOR}"}


@pytest.mark.parametrize("default", [True, False])
def test_service_account_impersonation(
    google: tuple[BucketServer, Identities], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, default: bool
) -> None:
    server, identities = google
    identities.may.add((OPERATOR, WRITER))
    key = identities.service_account(tmp_path / "key.json", OPERATOR)
    if default:
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key))
    own = "default" if default else str(key)
    server.admits = f"token-of-{WRITER}"
    copied(f"credentials: {own}, impersonate: {WRITER}", tmp_path)
    assert set(identities.given) == {f"token-of-{OPERATOR}", f"token-of-{WRITER}"}


def test_refused_credentials_are_one_line(google: tuple[BucketServer, Identities], tmp_path: Path) -> None:
    server, identities = google
    key = identities.service_account(tmp_path / "key.json", OPERATOR)
    with pytest.raises(MidstreamError, match=f"{OPERATOR} may not act for {WRITER}") as caught:
        copied(f"credentials: {key}, impersonate: {WRITER}", tmp_path)
    assert "\n" not in str(caught.value)
    server.admits = f"token-of-{WRITER}"
    with pytest.raises(MidstreamError, match=r"Invalid Credentials|the credentials are refused") as caught:
        copied(f"credentials: {key}", tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.system
def test_commands_use_fleet_credentials_and_no_key_is_sent(
    lab: Lab, google: tuple[BucketServer, Identities], tmp_path: Path
) -> None:
    server, identities = google
    key = identities.service_account(tmp_path / "key.json", OPERATOR)
    server.admits = f"token-of-{OPERATOR}"
    remote = lab.host("gpu")
    file = lab.fleet_file(gpu=remote.config)
    file.write_text(file.read_text() + f"stores: {{ours: {{url: {URL}, credentials: {key}}}}}\n")
    access = access_for(parse_fleet(file.read_text()), URL)
    write_checkpoint(tmp_path / "source", random.Random(2), size=20_000)
    host = open_host("gpu", remote.config)
    host.connect()
    copy_tree(Endpoint(host, str(tmp_path / "source")), bucket_endpoint(f"{URL}/tree", access))
    copy_tree(bucket_endpoint(f"{URL}/tree", access), Endpoint(host, str(remote.root / "back")))
    host.close()
    assert midstream("--fleet", file, "--verify", f"{URL}/tree").code == 0

    secret = json.loads(key.read_text())["private_key"].splitlines()[1]
    assert [path for path, content in files(remote.directory).items() if secret.encode() in content] == []
    file.write_text(file.read_text().replace(str(key), f"{tmp_path}/missing.json"))
    refused(midstream("--fleet", file, "--verify", f"{URL}/tree"), 1, "missing.json: no service account's key")


def test_engine_requests_name_user_project(
    google: tuple[BucketServer, Identities], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every request of an engine to a bucket with requester pays names the project."""
    server, _ = google
    server.requester_pays.add("runs")
    fleet = parse_fleet(
        f"hosts: {{h: {{type: local, root: {tmp_path}, env: {{A: b}}}}}}\n"
        f"stores: {{ours: {{url: {URL}, user_project: billed}}, free: {{url: gs://other/prefix}}}}"
    )
    env = engine_environment(str(tmp_path), fleet.hosts["h"], "/engine", Launch("r", "h"), 1)
    assert (env["A"], json.loads(env[VARIABLE])) == ("b", {URL: {"user_project": "billed"}})
    assert VARIABLE not in parse_fleet(f"hosts: {{h: {{type: local, root: {tmp_path}}}}}").hosts["h"].env

    def use_all() -> None:
        store = open_store(f"{URL}/step-1-a001")
        store.prepare(1)
        store.write("a/0", [memoryview(b"data")])
        store.sync()
        store.commit("manifest.json", b"{}")
        assert sorted(store.names()) == ["a/0", "manifest.json"]
        into = bytearray(4)
        assert store.read("a/0", [memoryview(into)], lambda _: None) == 4
        assert open_checkpoints(URL).names() == ["step-1-a001"]
        buckets.put(f"{URL}/cache/.requests/x.json", b"{}")
        assert buckets.get(f"{URL}/cache/.requests/x.json") == b"{}"
        assert [source.name for source in buckets.list_objects(f"{URL}/cache/**")] == ["x.json"]
        programs = ProgramFiles(str(tmp_path / "compiled"), ProgramBucket(f"{URL}/compiled"))
        assert programs.read("step", {}) is None
        programs.write("step", {}, b"program")
        assert programs.bucket is not None
        programs.bucket.close()
        assert list(engine_bucket(f"{URL}/compiled").entries()) == ["step"]
        store.clear()

    with pytest.raises(CheckpointError, match="requester pays"):
        use_all()
    monkeypatch.setenv(VARIABLE, env[VARIABLE])
    use_all()
    billed = [path for _, path in server.requests if "userProject=billed" in path]
    assert any("uploadType=media" in path or "upload" in path for path in billed)
    assert len(billed) > 8
    monkeypatch.setenv(VARIABLE, "billed")
    with pytest.raises(CheckpointError, match=r"MIDSTREAM_STORES is 'billed' \(hint: write \{"):
        open_store(f"{URL}/step-2-a001").prepare(1)


def test_engine_without_impersonation_is_refused_early(
    google: tuple[BucketServer, Identities], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, identities = google
    key = identities.service_account(tmp_path / "key.json", OPERATOR)
    text = f"stores: {{ours: {{url: {URL}, impersonate: {WRITER}}}}}\nhosts:\n  h: {{type: local, store: ours}}\n"
    plain = parse_fleet(text)
    keyed = parse_fleet(text + f"  k: {{type: local, store: ours, env: {{GOOGLE_APPLICATION_CREDENTIALS: {key}}}}}\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    with MetadataServer(**{"service-accounts/default/email": WRITER}) as metadata:
        here = LocalHost("h", LocalHostConfig(root=str(tmp_path / "h")))
        problem, hint = identity_problem(plain, here, URL)
        assert (
            f"h: the engine's requests to {URL} come from an anonymous client, which cannot act for {WRITER}" in problem
        )
        assert f"service_account: {WRITER}" in hint
        assert "this machine relays" in hint
        there = LocalHost("k", LocalHostConfig(root=str(tmp_path / "k")))
        assert f"from {OPERATOR}, which cannot act for {WRITER}" in identity_problem(keyed, there, URL)[0]
        monkeypatch.setenv("GCE_METADATA_HOST", metadata.address)
        assert identity_problem(plain, here, URL) == ("", ""), "the machine's own account is the expected one"
        assert identity_problem(keyed, there, URL)[0], "a file comes before the machine's account"
        checks = [check for check in check_target(HostPool(plain), plain.target("h")) if check.name == "store"]
        assert [(check.state, check.detail) for check in checks] == [("pass", f"requests to {URL} come from {WRITER}")]
        metadata.values.clear()
        with pytest.raises(UsageError, match=r"requests to .* come from an anonymous client, which cannot act for"):
            launch_run(HostPool(plain), LaunchRequest("h", str(TINY), "r"))
        assert not (Path(plain.hosts["h"].root).expanduser() / "runs").exists()
    assert (
        identity_problem(parse_fleet(f"stores: {{ours: {{url: {URL}}}}}\nhosts: {{h: {{type: local}}}}"), here, URL)[0]
        == ""
    )


def test_object_user_role_suffices_for_engine(google: tuple[BucketServer, Identities]) -> None:
    """roles/storage.objectUser grants all of objects, but not storage.buckets.get."""
    server, _ = google
    server.faults.append(Fault("GET", r"/b/runs([?]|$)", 403, times=999, message="storage.buckets.get is not granted"))
    store = open_store(f"{URL}/step-1-a001")
    store.prepare(1)
    store.write("a", [memoryview(b"data")])
    store.sync()
    assert store.get("a") == b"data"
    with pytest.raises(CheckpointError, match="there is no bucket elsewhere"):
        open_store("gs://elsewhere/step-1-a001").prepare(1)
