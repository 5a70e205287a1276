"""Flags of the driver of a run that is started again on a host with more devices."""

from __future__ import annotations

from pathlib import Path

import pytest

from midstream.errors import MidstreamError
from midstream.fleet.fleet import LocalHostConfig
from midstream.hosts.local_host import LocalHost
from midstream.launch import trainer_config
from midstream.trainers.run_file_parser import parse_run_file
from midstream_host.machine.checks import AcceleratorKinds

RUN = parse_run_file("trainer: huggingface\ncommand: python t.py", Path("run.yaml")).run


@pytest.mark.parametrize("tpus", [0, 4])
def test_trainer_sees_as_many_devices_as_before_or_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tpus: int
) -> None:
    """No variable hides a TPU: there the trainer would use all four."""
    found = AcceleratorKinds([], "", "", [], ["TPU v5e"] * tpus, [], "x86_64")
    monkeypatch.setattr(trainer_config, "_accelerators", lambda host, config: found)
    config = LocalHostConfig(root=str(tmp_path), devices=4)
    host = LocalHost("there", config)
    if not tpus:
        assert trainer_config.driver_flags(RUN, [host], [config], 1)[-1] == "--limit-devices"
        return
    with pytest.raises(MidstreamError, match="nothing keeps the global batch of this run: 1 device -> 4"):
        trainer_config.driver_flags(RUN, [host], [config], 1)
