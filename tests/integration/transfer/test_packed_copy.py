"""Copies of weights over a slow link: packed on the link, byte for byte the same at the target."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from midstream.hosts.local_host import LocalHost
from midstream.hosts.ssh.ssh_host import SshHost
from midstream.transfer.copy_settings import CopySettings
from midstream.transfer.copy_tree import copy_tree
from midstream.transfer.endpoint import Endpoint
from simulators.link import FAR, Link, through
from simulators.sshd import Lab
from support.checkpoints.trees import assert_same_tree, cell, write_tree
from support.loopback import free_port

MIB = 1 << 20


def weights(seed: int, mib: int) -> bytes:
    """Float32 values that look like a layer's parameters."""
    return (np.random.default_rng(seed).standard_normal(mib * MIB // 4) * 0.02).astype(np.float32).tobytes()


def tree(source: Path, *objects: bytes) -> None:
    write_tree(source, {cell(str(number)): data for number, data in enumerate(objects)})


@pytest.fixture
def local() -> LocalHost:
    from midstream.fleet.fleet import LocalHostConfig
    from midstream.hosts.host_pool import open_host

    host = open_host("here", LocalHostConfig(root="/nonexistent"))
    assert isinstance(host, LocalHost)
    return host


def test_copy_of_weights_is_packed_on_a_slow_link(lab: Lab, local: LocalHost, tmp_path: Path) -> None:
    server = lab.host("far")
    copy_port = free_port("127.0.0.1", FAR)
    link = Link(server.port, rate=3e6, copy_port=copy_port)
    try:
        far = SshHost(server.name, through(server, link.port, copy_port).config)
        far.connect()
        tree(tmp_path / "source", *(weights(seed, 8) for seed in range(2)))
        shares: list[float] = []
        # While other programs keep the cores busy, a sender rightly stops packing: then another copy is made.
        while len(shares) < 8 and not (shares and shares[-1] < 0.96):
            target = tmp_path / f"target{len(shares)}"
            report = copy_tree(
                Endpoint(local, str(tmp_path / "source")),
                Endpoint(far, str(target)),
                settings=CopySettings(streams=1),
            )
            assert_same_tree(tmp_path / "source", target)
            assert report.routes[0].startswith("direct")
            assert report.bytes_sent == 16 * MIB
            shares.append(report.bytes_on_link / report.bytes_sent)
        far.close()
    finally:
        link.close()
    assert 0.8 < shares[-1] < 0.96, f"a part is sent as it is, to measure the link: {shares}"


def test_bandwidth_limit_counts_packed_bytes(lab: Lab, local: LocalHost, tmp_path: Path) -> None:
    server = lab.host("far")
    far = SshHost(server.name, server.config)
    far.connect()
    tree(tmp_path / "source", weights(0, 24))
    settings = CopySettings(bandwidth_limit=8e6)
    report = copy_tree(
        Endpoint(far, str(tmp_path / "source")), Endpoint(local, str(tmp_path / "target")), settings=settings
    )
    far.close()
    assert_same_tree(tmp_path / "source", tmp_path / "target")
    assert report.bytes_on_link < 0.97 * report.bytes_sent


def test_random_bytes_are_sent_as_they_are(lab: Lab, local: LocalHost, tmp_path: Path) -> None:
    server = lab.host("far")
    far = SshHost(server.name, server.config)
    far.connect()
    tree(tmp_path / "source", np.random.default_rng(0).bytes(16 * MIB))
    settings = CopySettings(bandwidth_limit=40e6)
    report = copy_tree(
        Endpoint(local, str(tmp_path / "source")), Endpoint(far, str(tmp_path / "target")), settings=settings
    )
    far.close()
    assert_same_tree(tmp_path / "source", tmp_path / "target")
    assert report.bytes_on_link == report.bytes_sent
