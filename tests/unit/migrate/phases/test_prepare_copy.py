"""Clients of buckets, started for a copy while the source trains."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from midstream.fleet.fleet import LocalHostConfig
from midstream.hosts.local_forks import LocalForks
from midstream.hosts.local_host import LocalHost
from midstream.migrate.checkpoint_store import BucketStore, CheckpointStore, DirectoryStore
from midstream.migrate.steps.streamed_copy import prepare_copy
from midstream.stores import bucket_host
from midstream.stores.bucket_access import Access


def prepared(source: CheckpointStore, target: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the clients that are started for a copy between two stores."""
    started: list[str] = []
    forks = LocalForks()
    monkeypatch.setattr(forks, "prepare", started.append)
    monkeypatch.setattr(bucket_host, "CLIENT_FORKS", forks)
    groups = [
        SimpleNamespace(checkpoint_store=store, store=store.store, bucket_client_host=None, python="")
        for store in (source, target)
    ]
    migration: Any = SimpleNamespace(
        source_group=groups[0], target_group=groups[1], plan=SimpleNamespace(checkpoint="step-5-a001")
    )
    prepare_copy(cast(Any, migration))
    return started


def test_client_of_a_bucket_is_started_before_the_seal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = (LocalHost(name, LocalHostConfig(root=str(tmp_path / name))) for name in ("one", "other"))
    disk, bucket = DirectoryStore(one, "run"), BucketStore(other, "run", "s3://bucket/here", Access())
    google = BucketStore(other, "run", "gs://bucket/here", Access())
    assert prepared(disk, bucket, monkeypatch) == ["s3://"]
    assert prepared(google, disk, monkeypatch) == ["gs://"]
    assert sorted(prepared(google, bucket, monkeypatch)) == ["gs://", "s3://"]


def test_nothing_is_started_where_no_bytes_pass_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = (LocalHost(name, LocalHostConfig(root=str(tmp_path / name))) for name in ("one", "other"))
    bucket = BucketStore(other, "run", "s3://bucket/here", Access())
    assert prepared(DirectoryStore(one, "run"), DirectoryStore(other, "run"), monkeypatch) == []
    assert prepared(bucket, BucketStore(one, "run", "s3://bucket/here", Access()), monkeypatch) == []
