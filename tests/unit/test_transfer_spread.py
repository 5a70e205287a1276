"""Checkpoints that lie on several hosts: brought together, handed out whole, handed out in shares."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from midstream.fleet.fleet import LocalHost
from midstream.hosts.local_host import LocalMachine
from midstream.transfer import Endpoint, Progress, TransferError, collect_objects, fan_out, verify_objects
from midstream_engine import records
from support.trees import assert_same_tree, files, write_checkpoint


@pytest.fixture
def hosts(tmp_path: Path) -> dict[str, LocalMachine]:
    return {name: LocalMachine(name, LocalHost(root=str(tmp_path / name))) for name in ("a", "b", "c")}


Hosts = dict[str, LocalMachine]


def read(directory: Path) -> records.Manifest:
    return records.Manifest.from_json(json.loads((directory / records.MANIFEST).read_text()))


def places(hosts: Hosts, tmp_path: Path) -> dict[str, Endpoint]:
    return {name: Endpoint(host, str(tmp_path / name / "ckpt")) for name, host in hosts.items() if name != "c"}


def halves(path: str) -> bool:
    return path.endswith(("/0", "/1"))


NEEDS = {"a": lambda path: halves(path) or "/" not in path, "b": lambda path: not halves(path)}


def test_shares_that_were_handed_out_are_collected_to_the_same_checkpoint(hosts: Hosts, tmp_path: Path) -> None:
    digest = write_checkpoint(tmp_path / "whole", random.Random(1), arrays=2, cells=4, size=50_000)
    whole = files(tmp_path / "whole")
    fan_out(hosts["c"], str(tmp_path / "whole"), places(hosts, tmp_path), needs=NEEDS)
    for name in ("a", "b"):
        there = files(tmp_path / name / "ckpt")
        share = read(tmp_path / name / "ckpt")
        assert there.keys() - {records.MANIFEST} == {path for path in whole if NEEDS[name](path)} - {records.MANIFEST}
        elsewhere = {entry.path for lot in share.elsewhere.values() for entry in lot}
        assert elsewhere == whole.keys() - there.keys()
        assert (share.host, share.root_digest) == (name, digest)

    report = collect_objects(hosts, hosts["a"], str(tmp_path / "a" / "ckpt"), hosts["c"], str(tmp_path / "again"))
    assert len(report.routes) == 2, "both hosts sent"
    again = files(tmp_path / "again")
    assert_same_tree({**again, records.MANIFEST: b""}, {**whole, records.MANIFEST: b""})
    collected = read(tmp_path / "again")
    assert (collected.hosts, collected.host) == ([], "")
    assert verify_objects(hosts["c"], str(tmp_path / "again")).root_digest == digest


def test_a_host_that_holds_a_share_and_is_not_there_is_named(hosts: Hosts, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "whole", random.Random(1))
    fan_out(hosts["c"], str(tmp_path / "whole"), places(hosts, tmp_path), needs=NEEDS)
    without = {name: host for name, host in hosts.items() if name != "b"}
    with pytest.raises(TransferError, match=r"is spread: b hold a part of it"):
        collect_objects(without, hosts["a"], str(tmp_path / "a" / "ckpt"), hosts["c"], str(tmp_path / "again"))
    (tmp_path / "b" / "ckpt" / "arrays/model/array0/c/2").unlink()
    with pytest.raises(TransferError, match=r"object arrays/model/array0/c/2 of b:.*: missing"):
        collect_objects(hosts, hosts["a"], str(tmp_path / "a" / "ckpt"), hosts["c"], str(tmp_path / "again"))
    assert not (tmp_path / "again").exists()


def test_a_whole_tree_goes_to_several_hosts_at_once(hosts: Hosts, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "whole", random.Random(2), size=200_000)
    seen: list[Progress] = []
    reports = fan_out(hosts["c"], str(tmp_path / "whole"), places(hosts, tmp_path), progress=seen.append)
    assert reports.keys() == {"a", "b"}
    for name in reports:
        assert_same_tree(tmp_path / name / "ckpt", tmp_path / "whole")
    total = sum(report.bytes for report in reports.values())
    assert (seen[-1].bytes_done, seen[-1].bytes_total, seen[-1].eta_seconds) == (total, total, 0.0)
    assert all(each.bytes_total == total for each in seen)


def test_what_goes_wrong_with_one_of_several_is_what_is_raised(hosts: Hosts, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "whole", random.Random(3), size=100_000)
    write_checkpoint(tmp_path / "b" / "ckpt", random.Random(4))
    with pytest.raises(TransferError, match=r"b:.*holds another tree"):
        fan_out(hosts["c"], str(tmp_path / "whole"), places(hosts, tmp_path))
    needs = {"a": halves, "b": lambda path: "/c/" in path}
    with pytest.raises(TransferError, match=r"nobody needs train\.json"):
        fan_out(hosts["c"], str(tmp_path / "whole"), places(hosts, tmp_path), needs=needs)
