"""Whose name a bucket is asked in: what the fleet file's ``stores:`` say, as the service sees it."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.bucket import BucketServer, Fault, bucket_server
from lab.command_line import midstream, refused
from lab.identities import Identities
from lab.sshd import Lab
from midstream.errors import MidstreamError
from midstream.fleet.config import LocalHost, parse_fleet
from midstream.hosts.local import LocalMachine
from midstream.hosts.open import open_host
from midstream.stores.access import access_for
from midstream.transfer import Place, bucket_place, copy_tree
from midstream_engine.checkpoint.errors import CheckpointError
from midstream_engine.checkpoint.stores import open_store
from trees import assert_same_tree, write_checkpoint

URL = "gs://runs/ours"
MOVER, WRITER = "mover@lab.iam.gserviceaccount.com", "writer@lab.iam.gserviceaccount.com"


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[BucketServer, Identities]]:
    """A bucket and the servers of tokens; this machine has no credentials yet."""
    with bucket_server("runs") as server, Identities() as identities:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
        monkeypatch.setenv("MIDSTREAM_IAM_ENDPOINT", identities.address)
        yield server, identities


def copied(entry: str, tmp_path: Path) -> None:
    """A tree goes to the store and comes back, with what the fleet file says of it."""
    fleet = parse_fleet(f"stores: {{ours: {{url: {URL}, {entry}}}}}")
    here = LocalMachine("here", LocalHost(root=str(tmp_path / "root")))
    write_checkpoint(tmp_path / "source", random.Random(1), size=20_000)
    there = bucket_place(f"{URL}/tree", access_for(fleet, f"{URL}/tree"))
    copy_tree(Place(here, str(tmp_path / "source")), there)
    copy_tree(there, Place(here, str(tmp_path / "back")))
    assert_same_tree(tmp_path / "back", tmp_path / "source")


def test_nobody_in_particular(google: tuple[BucketServer, Identities], tmp_path: Path) -> None:
    server, identities = google
    server.admits = ""
    copied("credentials: anonymous", tmp_path)
    assert identities.given == []


def test_the_key_file_of_a_service_account(google: tuple[BucketServer, Identities], tmp_path: Path) -> None:
    server, identities = google
    key = identities.service_account(tmp_path / "key.json", MOVER)
    server.admits = f"token-of-{MOVER}"
    copied(f"credentials: {key}", tmp_path)
    assert set(identities.given) == {f"token-of-{MOVER}"}


def test_application_default_credentials(
    google: tuple[BucketServer, Identities], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, identities = google
    key = identities.service_account(tmp_path / "adc.json", MOVER)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key))
    server.admits = f"token-of-{MOVER}"
    copied("credentials: default", tmp_path)
    assert set(identities.given) == {f"token-of-{MOVER}"}


@pytest.mark.parametrize("default", [True, False])
def test_in_the_name_of_a_service_account(
    google: tuple[BucketServer, Identities], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, default: bool
) -> None:
    server, identities = google
    identities.may.add((MOVER, WRITER))
    key = identities.service_account(tmp_path / "key.json", MOVER)
    if default:
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key))
    own = "default" if default else str(key)
    server.admits = f"token-of-{WRITER}"
    copied(f"credentials: {own}, impersonate: {WRITER}", tmp_path)
    assert set(identities.given) == {f"token-of-{MOVER}", f"token-of-{WRITER}"}


def test_who_may_not_act_for_another_or_is_another_is_told_in_one_line(
    google: tuple[BucketServer, Identities], tmp_path: Path
) -> None:
    server, identities = google
    key = identities.service_account(tmp_path / "key.json", MOVER)
    with pytest.raises(MidstreamError, match=f"{MOVER} may not act for {WRITER}") as caught:
        copied(f"credentials: {key}, impersonate: {WRITER}", tmp_path)
    assert "\n" not in str(caught.value)
    server.admits = f"token-of-{WRITER}"
    with pytest.raises(MidstreamError, match=r"Invalid Credentials|the credentials are refused") as caught:
        copied(f"credentials: {key}", tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.system
def test_commands_ask_as_the_fleet_file_says_and_no_key_reaches_a_host(
    lab: Lab, google: tuple[BucketServer, Identities], tmp_path: Path
) -> None:
    server, identities = google
    key = identities.service_account(tmp_path / "key.json", MOVER)
    server.admits = f"token-of-{MOVER}"
    remote = lab.host("gpu")
    file = lab.fleet_file(gpu=remote.config)
    file.write_text(file.read_text() + f"stores: {{ours: {{url: {URL}, credentials: {key}}}}}\n")
    access = access_for(parse_fleet(file.read_text()), URL)
    write_checkpoint(tmp_path / "source", random.Random(2), size=20_000)
    host = open_host("gpu", remote.config)
    host.connect()
    copy_tree(Place(host, str(tmp_path / "source")), bucket_place(f"{URL}/tree", access))
    copy_tree(bucket_place(f"{URL}/tree", access), Place(host, str(remote.root / "back")))
    host.close()
    assert midstream("--fleet", file, "--verify", f"{URL}/tree").code == 0

    secret = json.loads(key.read_text())["private_key"].splitlines()[1]
    for path in remote.directory.rglob("*"):
        assert not path.is_file() or secret not in path.read_text(errors="replace"), path
    file.write_text(file.read_text().replace(str(key), f"{tmp_path}/gone.json"))
    refused(midstream("--fleet", file, "--verify", f"{URL}/tree"), 1, "gone.json: no service account's key")


def test_the_role_that_the_guide_names_is_enough_for_the_engine(google: tuple[BucketServer, Identities]) -> None:
    """roles/storage.objectUser: all of objects, nothing of the bucket itself (storage.buckets.get)."""
    server, _ = google
    server.faults.append(Fault("GET", r"/b/runs([?]|$)", 403, times=999, message="storage.buckets.get is not granted"))
    store = open_store(f"{URL}/step-1-a001")
    store.prepare(1)
    store.write("a", [memoryview(b"cell")])
    store.sync()
    assert store.get("a") == b"cell"
    with pytest.raises(CheckpointError, match="there is no bucket elsewhere"):
        open_store("gs://elsewhere/step-1-a001").prepare(1)
