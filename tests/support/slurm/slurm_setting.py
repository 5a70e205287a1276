"""A real Slurm cluster with a login node, whose programs may lose their answers, and engines that commit."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from midstream.fleet.fleet import Fleet, SlurmTarget
from midstream.hosts.host_pool import HostPool
from midstream.install.bundle import build_bundle, install_engine
from midstream.install.environment import Environment
from midstream.launch import host_group_start
from simulators.clusters.slurm_cluster import SlurmCluster, login_node
from simulators.sshd import Lab, SshServer
from support.engines.committing_engine import write_committing_engine

PROGRAMS = ("sbatch", "scancel", "squeue")
WRAPPER = """#!/bin/sh
mode=$(cat {directory}/lost-{name} 2>/dev/null)
case "$mode" in
dead) ;;
late) {real} "$@" >/dev/null ;;
swallowed) exit 0 ;;
*) exec {real} "$@" ;;
esac
echo '{name}: error: Socket timed out on send/recv operation' >&2; exit 1
"""
FLAGS = {"plain": [], "batch": ["--signal=B:TERM@50"], "limit": ["--time=1", "--signal=TERM@50"],
         "batch limit": ["--time=1", "--signal=B:TERM@50"], "reservation": ["--signal=TERM@50", "--reservation=soon"],
         "no requeue": ["--no-requeue"]}  # fmt: skip


@dataclass
class Setting:
    """A cluster, its login node and the connections to it; all cases share them."""

    cluster: SlurmCluster
    fleet: Fleet
    hosts: HostPool
    programs: Path
    login: SshServer
    count: int = 0

    @contextmanager
    def lost(self, program: str, mode: str) -> Iterator[None]:
        """Let a program of the login node answer nothing: ``dead``, or ``late``: after it has done its work.

        ``swallowed``: it succeeds and does nothing.
        """
        file = self.programs / f"lost-{program}"
        file.write_text(mode)
        try:
            yield
        finally:
            file.unlink()


@contextmanager
def opened() -> Iterator[Setting]:
    """Start a cluster with a login node."""
    with tempfile.TemporaryDirectory(prefix="slurm-") as text, pytest.MonkeyPatch.context() as patch:
        directory = Path(text)
        cluster, lab = SlurmCluster(directory / "cluster"), Lab(directory / "lab")
        cluster.directory.mkdir()
        patch.setenv("MIDSTREAM_STATE", str(directory / "state"))
        for name, value in cluster.environment.items():  # functions for the login node are also called here
            patch.setenv(name, value)
        bundle = build_bundle(write_committing_engine(directory / "package"))
        patch.setattr(host_group_start, "install_engine", lambda host: install_engine(host, bundle))
        patch.setattr(host_group_start, "prepare_environment", lambda *_: Environment(sys.executable, "the tests' own"))
        try:
            cluster.start()
            login = login_node(lab, cluster, "login", devices=1)
            programs = login.directory / "programs"
            programs.mkdir()
            for name in PROGRAMS:
                file = programs / name
                file.write_text(WRAPPER.format(directory=programs, name=name, real=shutil.which(name)))
                file.chmod(0o755)
            login.stop()
            config = login.directory / "sshd_config"
            config.write_text(config.read_text().replace('"PATH=', f'"PATH={programs}:', 1))
            login.start()
            patch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
            targets = {name: SlurmTarget("login", ["--nodes=1", *flags]) for name, flags in FLAGS.items()}
            fleet = Fleet({"login": login.config}, {**targets})
            hosts = HostPool(fleet)
            try:
                yield Setting(cluster, fleet, hosts, programs, login)
            finally:
                hosts.close()
        finally:
            lab.close()
            cluster.stop()
