"""Exports of checkpoints: what a run keeps for them, and for how many processes they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from midstream.errors import MidstreamError, UsageError
from midstream.fleet.fleet import Fleet, LocalHostConfig
from midstream.hosts.host_pool import HostPool
from midstream.operations.export_checkpoint import division_flags, pinned
from midstream_host.runs import checkpoint_pins
from support.run_directory import RunDirectory


def test_run_keeps_a_checkpoint_while_it_is_exported(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.fence(1)
    name = run.checkpoint(100)
    hosts = HostPool(Fleet({"here": LocalHostConfig(root=str(tmp_path))}))
    try:
        with pinned(hosts.get("here"), "run", name):
            assert list(checkpoint_pins.pinned(run.paths)) == [name]
        assert checkpoint_pins.pinned(run.paths) == {}
        deleted = pinned(hosts.get("here"), "run", "step-90-a001")
        with pytest.raises(MidstreamError, match="step-90-a001 of run is not there any more") as refused:
            deleted.__enter__()
        assert refused.value.hint == "midstream --checkpoints run"
        assert list(Path(run.paths.pins).iterdir()) == []
    finally:
        hosts.close()


def test_only_divided_formats_have_a_number_of_processes() -> None:
    assert division_flags("huggingface", None, None) == ()
    assert division_flags("neox", 8, 2) == ("--processes", "8", "--model-parallel-size", "2")
    with pytest.raises(UsageError, match="--model-parallel-size: deepspeed is written for any number"):
        division_flags("deepspeed", 2, 2)
    with pytest.raises(UsageError, match="--processes 0: at least 1 is needed"):
        division_flags("deepspeed", 0, None)
