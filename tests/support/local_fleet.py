"""A fleet of directories on this machine, the command line in this process, and a run that has stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from midstream import cli
from midstream_core import records
from support.run_directory import RunDirectory, dead_process

CONFIG = """\
data: {tokenizer: bytes, train_urls: ["stdlib:json/*.py"]}
model: {type: gpt2}
trainer: {train_batch_size: 32, num_train_steps: 1000}
"""
ENDED = records.STOPPED


class Fleet:
    """Roots on this machine, and the command line in this process."""

    def __init__(self, directory: Path, capsys: pytest.CaptureFixture[str], *names: str) -> None:
        self.roots = {name: directory / name for name in names}
        self.file = directory / "fleet.yaml"
        lines = [f'  {name}: {{type: local, devices: 2, root: "{root}"}}' for name, root in self.roots.items()]
        self.file.write_text("\n".join(["hosts:", *lines]) + "\n")
        self._capsys = capsys

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        """Return exit code, stdout and stderr."""
        self._capsys.readouterr()
        code = cli.main(["--fleet", str(self.file), *arguments])
        out, err = self._capsys.readouterr()
        assert "Traceback" not in err
        return code, out, err

    def refused(self, *arguments: str) -> str:
        """Return the last line of a command that was refused before anything was changed."""
        before = self.tree()
        code, _, err = self(*arguments)
        assert code == 3, (code, err)
        assert self.tree() == before
        return err.strip().splitlines()[-1]

    def tree(self) -> list[str]:
        return sorted(str(path) for root in self.roots.values() for path in root.rglob("*") if ".lock" not in path.name)

    def repaired(self, *arguments: str) -> list[dict[str, Any]]:
        """Return the lines of a repair that wrote every record."""
        code, out, err = self("--repair", *arguments, "--yes", "--json")
        assert code == 0, err
        return [line for line in map(json.loads, out.splitlines()) if line["event"] == "repair"]


def stopped_run(root: Path, run_id: str = "solo") -> RunDirectory:
    run = RunDirectory(root, run_id)
    Path(run.paths.config).write_text(CONFIG)
    run.fence(1, "here")
    run.lineage({"attempt": 1, "epoch": 1, "last_step": 8})
    run.rows(1, *range(8))
    name = run.checkpoint(8)
    Path(run.paths.checkpoint(name), records.TRAIN).write_text(json.dumps({"state": {"data_digest": "d" * 64}}))
    process = dead_process()
    run.status(1, ENDED, 8, process)
    status = records.Status.read(run.attempt(1).status()).to_json()
    records.write_json(run.attempt(1).status(), {**status, "devices": [{"kind": "cpu"}]})
    records.write_json(run.attempt(1).launched(), {**process.to_json(), "argv": []})
    records.ProcessExit(0, 0, 2000.0, state=ENDED, step=8, heartbeat=1999.0).write(run.attempt(1).exit())
    return run
