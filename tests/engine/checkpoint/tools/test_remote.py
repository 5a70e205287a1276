"""Checkpoints behind a real SSH server: verified, decoded, shown and compared in place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from midstream.cli import main
from midstream.errors import Exit
from midstream_core.records import RunPaths
from midstream_host.verify import array_check
from simulators import sshd
from simulators.sshd import Lab
from support.checkpoints.checkpoint_states import plain_state, save

lab = sshd.lab  # the fixture


@pytest.fixture
def there(lab: Lab) -> tuple[RunPaths, str]:
    """Two checkpoints on a host, and a fleet file with that host."""
    server = lab.host("gpu1")
    paths = RunPaths(str(server.root), "run")
    save(paths, plain_state(), step=7)
    other = plain_state()
    other["model"]["bias"][5] += 1
    save(paths, other, step=9)
    return paths, str(lab.fleet_file(gpu1=server.config))


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_remote_checkpoint_is_decoded_on_its_host(
    there: tuple[RunPaths, str], capsys: pytest.CaptureFixture[str]
) -> None:
    paths, fleet = there
    place = f"gpu1:{paths.checkpoint('step-7-a001')}"
    assert main(["--fleet", fleet, "--json", "--verify", place, "--deep"]) == Exit.DONE
    *arrays, result = lines(capsys)
    assert (result["ok"], result["checkpoint"]) == (True, place)
    assert {array["name"] for array in arrays if "norm" in array} >= {"model/wide", "opt/0/count"}
    assert main(["--fleet", fleet, "--checkpoints", place, "--deep"]) == Exit.DONE
    assert [line for line in capsys.readouterr().out.splitlines() if line.strip().startswith("wide") and "norm" in line]
    cell = Path(paths.checkpoint("step-7-a001"), "arrays/model/wide/c/0/1")
    cell.write_bytes(cell.read_bytes()[:-1])
    for flags in ([], ["--deep"]):
        assert main(["--fleet", fleet, "--verify", place, *flags]) == Exit.FAILED
        assert f"{place}/arrays/model/wide/c/0/1: " in capsys.readouterr().out


def test_remote_checkpoint_without_engine_uses_stdlib_decoder(
    there: tuple[RunPaths, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, fleet = there
    # The module's source is sent to the host; an engine of another name is found nowhere.
    source = Path(array_check.__file__).read_text()
    assert 'ENGINE = "midstream_engine.checkpoint"' in source
    from midstream.hosts.rpc import remote_call

    original = remote_call._modules

    def without_engine(module: str) -> Any:
        return tuple(
            (name, text.replace('ENGINE = "midstream_engine.checkpoint"', 'ENGINE = "not_installed"') if text else text)
            for name, text in original(module)
        )

    monkeypatch.setattr(remote_call, "_modules", without_engine)
    place = f"gpu1:{paths.checkpoint('step-7-a001')}"
    assert main(["--fleet", fleet, "--verify", place, "--deep"]) == Exit.DONE
    out = capsys.readouterr().out.strip()
    assert ": verified: " in out
    assert out.endswith("; arrays decoded by the standard library")


def test_remote_checkpoints_are_compared_by_manifest(
    there: tuple[RunPaths, str], capsys: pytest.CaptureFixture[str]
) -> None:
    paths, fleet = there
    places = [f"gpu1:{paths.checkpoint(name)}" for name in ("step-7-a001", "step-9-a001")]
    assert main(["--fleet", fleet, "--diff", *places]) == Exit.FAILED
    assert capsys.readouterr().out.splitlines()[2:] == ["~ model/bias: differs (2048 elements)"]
