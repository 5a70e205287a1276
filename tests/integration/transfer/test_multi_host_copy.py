"""Checkpoints on several hosts: collected, sent completely or in shares."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from midstream.fleet.fleet import LocalHostConfig
from midstream.hosts.local_host import LocalHost
from midstream.transfer import stream_pool
from midstream.transfer.endpoint import Endpoint
from midstream.transfer.errors import TransferError
from midstream.transfer.multi_host_copy import collect_objects, fan_out
from midstream.transfer.report import Progress
from midstream.transfer.send_queue import SendQueue
from midstream.transfer.verify_tree import verify_objects
from midstream_core import records
from support.checkpoints.trees import assert_same_tree, files, write_checkpoint


@pytest.fixture
def hosts(tmp_path: Path) -> dict[str, LocalHost]:
    return {name: LocalHost(name, LocalHostConfig(root=str(tmp_path / name))) for name in ("a", "b", "c")}


Hosts = dict[str, LocalHost]


def read(directory: Path) -> records.Manifest:
    return records.Manifest.from_json(json.loads((directory / records.MANIFEST).read_text()))


def endpoints(hosts: Hosts, tmp_path: Path) -> dict[str, Endpoint]:
    return {name: Endpoint(host, str(tmp_path / name / "ckpt")) for name, host in hosts.items() if name != "c"}


def halves(path: str) -> bool:
    return path.endswith(("/0", "/1"))


NEEDS = {"a": lambda path: halves(path) or "/" not in path, "b": lambda path: not halves(path)}


def test_fan_out_and_collect_keep_the_checkpoint(hosts: Hosts, tmp_path: Path) -> None:
    digest = write_checkpoint(tmp_path / "complete", random.Random(1), arrays=2, cells=4, size=50_000)
    complete = files(tmp_path / "complete")
    fan_out(Endpoint(hosts["c"], str(tmp_path / "complete")), endpoints(hosts, tmp_path), needs=NEEDS)
    for name in ("a", "b"):
        there = files(tmp_path / name / "ckpt")
        share = read(tmp_path / name / "ckpt")
        assert there.keys() - {records.MANIFEST} == {path for path in complete if NEEDS[name](path)} - {
            records.MANIFEST
        }
        elsewhere = {entry.path for entries in share.elsewhere.values() for entry in entries}
        assert elsewhere == complete.keys() - there.keys()
        assert (share.host, share.root_digest) == (name, digest)

    report = collect_objects(
        hosts, Endpoint(hosts["a"], str(tmp_path / "a" / "ckpt")), Endpoint(hosts["c"], str(tmp_path / "collected"))
    )
    assert len(report.routes) == 2, "both hosts sent"
    objects = files(tmp_path / "collected")
    assert_same_tree({**objects, records.MANIFEST: b""}, {**complete, records.MANIFEST: b""})
    collected = read(tmp_path / "collected")
    assert (collected.hosts, collected.host) == ([], "")
    assert verify_objects(hosts["c"], str(tmp_path / "collected")).root_digest == digest


def test_collect_opens_streams_of_few_hosts_at_once(
    hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checkpoint(tmp_path / "complete", random.Random(1), arrays=2, cells=4, size=50_000)
    fan_out(Endpoint(hosts["c"], str(tmp_path / "complete")), endpoints(hosts, tmp_path), needs=NEEDS)
    monkeypatch.setattr(stream_pool, "MAX_SOURCES", 1)
    busy: list[int] = []
    opened: list[str] = []
    open_queue = stream_pool.StreamPool._open

    def observed(pool: stream_pool.StreamPool, queue: SendQueue) -> None:
        busy.append(sum(each.busy for each in pool._queues))
        opened.append(queue.route.source.host.name)
        open_queue(pool, queue)

    monkeypatch.setattr(stream_pool.StreamPool, "_open", observed)
    collect_objects(
        hosts, Endpoint(hosts["a"], str(tmp_path / "a" / "ckpt")), Endpoint(hosts["c"], str(tmp_path / "collected"))
    )
    assert busy == [0, 0], "the second host begins when the first one is done"
    assert sorted(opened) == ["a", "b"]
    assert files(tmp_path / "collected").keys() == files(tmp_path / "complete").keys()


def test_missing_host_with_a_share_is_named(hosts: Hosts, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "complete", random.Random(1))
    fan_out(Endpoint(hosts["c"], str(tmp_path / "complete")), endpoints(hosts, tmp_path), needs=NEEDS)
    without = {name: host for name, host in hosts.items() if name != "b"}
    with pytest.raises(TransferError, match=r"the fleet file lacks b"):
        collect_objects(
            without,
            Endpoint(hosts["a"], str(tmp_path / "a" / "ckpt")),
            Endpoint(hosts["c"], str(tmp_path / "collected")),
        )
    (tmp_path / "b" / "ckpt" / "arrays/model/array0/c/2").unlink()
    with pytest.raises(TransferError, match=r"object arrays/model/array0/c/2 of b:.*: missing"):
        collect_objects(
            hosts, Endpoint(hosts["a"], str(tmp_path / "a" / "ckpt")), Endpoint(hosts["c"], str(tmp_path / "collected"))
        )
    assert not (tmp_path / "collected").exists()


def test_fan_out_copies_complete_tree_to_several_hosts(hosts: Hosts, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "complete", random.Random(2), size=200_000)
    updates: list[Progress] = []
    reports = fan_out(
        Endpoint(hosts["c"], str(tmp_path / "complete")), endpoints(hosts, tmp_path), progress=updates.append
    )
    assert reports.keys() == {"a", "b"}
    for name in reports:
        assert_same_tree(tmp_path / name / "ckpt", tmp_path / "complete")
    total = sum(report.bytes for report in reports.values())
    assert (updates[-1].bytes_done, updates[-1].bytes_total, updates[-1].eta_seconds) == (total, total, 0.0)
    assert all(each.bytes_total == total for each in updates)


def test_fan_out_raises_the_error_of_one_host(hosts: Hosts, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "complete", random.Random(3), size=100_000)
    write_checkpoint(tmp_path / "b" / "ckpt", random.Random(4))
    with pytest.raises(TransferError, match=r"b:.*has another tree"):
        fan_out(Endpoint(hosts["c"], str(tmp_path / "complete")), endpoints(hosts, tmp_path))
    needs = {"a": halves, "b": lambda path: "/c/" in path}
    with pytest.raises(TransferError, match=r"no target needs train\.json"):
        fan_out(Endpoint(hosts["c"], str(tmp_path / "complete")), endpoints(hosts, tmp_path), needs=needs)
