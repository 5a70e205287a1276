"""SSH files of a slice, from what its workers publish: a worker may be hostile."""

from __future__ import annotations

from pathlib import Path

import pytest

from midstream.fleet.tpu_target import TpuTarget
from midstream.providers.provider import ProviderError, Slice, SliceStatus, Worker
from midstream.providers.ssh_access import write_access

KEY = "AAAAC3NzaC1lZDI1NTE5AAAAIIhmcLGkSFMiZ6+gL9l2ZZ4gWIdYzHmDAMzxeR4nmyNp"
TARGET = TpuTarget(project="p", zone="z", reach="iap")
FOUND = Slice("p", "z", "pod", SliceStatus.READY, "READY", workers=(Worker("10.0.0.2"),), identity="7")


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MIDSTREAM_STATE", str(tmp_path))
    return tmp_path / "slices/p/z/pod"


def test_keys_and_name_of_a_worker_are_written(directory: Path) -> None:
    write_access("pod", TARGET, FOUND, [{"ssh-ed25519": KEY, "hostname": "t1v-n-1234-w-0"}], "me", None)
    assert (directory / "known_hosts").read_text() == f"tpu.7.pod-0 ssh-ed25519 {KEY}\n"
    assert "start-iap-tunnel t1v-n-1234-w-0 " in (directory / "ssh_config").read_text()


@pytest.mark.parametrize("name", ['x\nMatch exec "touch run"\n', "--impersonate-service-account=x", "a b", ""])
def test_worker_cannot_write_lines_of_our_ssh_files(directory: Path, name: str) -> None:
    hostile = {"ssh-rsa": f"{KEY}\n@cert-authority * ssh-ed25519 {KEY}", "hostname": name}
    with pytest.raises(ProviderError, match="does not publish its instance's name"):
        write_access("pod", TARGET, FOUND, [hostile], "me", None)
    assert (directory / "known_hosts").read_text() == ""
