"""Bytes that the command line writes to a terminal for a hostile host."""

from __future__ import annotations

import json
import os
import pty
import sys
from pathlib import Path

import pytest

from midstream_core import records
from simulators.sshd import Lab, environment
from support import recorded_outputs as recorded
from support.hostile_text import ALL, SEQUENCES, unsafe
from support.run_directory import RunDirectory


def on_a_terminal(*arguments: str) -> tuple[int, str]:
    """Run the command in a terminal of its own; return its exit code and output."""
    child, terminal = pty.fork()
    if child == 0:
        os.environ["TERM"] = "xterm-256color"
        os.execv(sys.executable, [sys.executable, "-m", "midstream", *arguments])
    written = bytearray()
    while True:
        try:
            data = os.read(terminal, 1 << 16)
        except OSError:  # the other end is closed
            break
        if not data:
            break
        written += data
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), written.decode().replace("\r\n", "\n")


@pytest.fixture
def fleet(lab: Lab, tmp_path: Path) -> str:
    """Create a host with hostile device names, logs and directory names."""
    gpu = dict(zip(recorded.FIELDS, recorded.GPUS["H100"][0].splitlines()[0].split(", "), strict=True))
    device = "GPU " + "".join(each for name, each in SEQUENCES.items() if name not in ("surrogate", "separators"))
    row = ", ".join({**gpu, "name": device.replace(",", ";")}.values())
    (tmp_path / "row").write_text(row)
    program = tmp_path / "nvidia-smi"
    program.write_text(
        f"#!/bin/sh\ncase $1 in\n--query-gpu=*) cat {tmp_path / 'row'}; echo ;;\n--query-compute-apps=*) ;;\n"
        "*) printf '| CUDA Version: 12.4\\033[2J |\\n' ;;\nesac\n"
    )
    program.chmod(0o755)
    server = lab.host("odd", sshd=environment(PATH=f"{tmp_path}:{os.environ['PATH']}"))
    run = RunDirectory(server.root, "gpt")
    words = ALL.replace("\udc9b", "")
    run.lineage({"attempt": 1, "epoch": 1, "device_kind": words})
    run.fence(1)
    run.status(1, records.TRAINING, 3)
    run.rows(1, 0, 1, 2)
    run.checkpoint(2)
    run.log(1, f"begin\n{words}\n\ttabs stay\nprogress 1%\rprogress 2%\nend\n")
    for name in ("evil\nrun", "r\x1b[2J\x1b]0;x\x07", "bidi\u202e"):
        (server.root / "runs" / name / "attempts" / "001").mkdir(parents=True)
    return str(lab.fleet_file(odd=server.config))


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--status",), 0),
        (("--checkpoints",), 0),
        (("--checkpoints", "gpt"), 0),
        (("--log", "gpt"), 0),
        (("--check", "odd"), None),
        (("--log", "no-\x1b[2Jsuch\nrun"), 2),
        (("--metrics", "gpt"), 0),
    ],
    ids=lambda value: " ".join(map(repr, value)) if isinstance(value, tuple) else "",
)
def test_terminal_gets_printable_text_alone(fleet: str, arguments: tuple[str, ...], code: int | None) -> None:
    ended, written = on_a_terminal("--fleet", fleet, *arguments)
    assert code is None or ended == code, written
    assert written
    assert "Traceback" not in written
    assert not unsafe(written, "\n\t"), written
    if arguments == ("--log", "gpt"):
        lines = written.splitlines()
        assert (lines[0], lines[-1]) == ("begin", "end")
        assert "\ttabs stay" in lines
        assert "progress 1%\\rprogress 2%" in lines
    if arguments == ("--status",):
        assert r"\x1b]52;c;" in written


def test_json_lines_keep_text_unchanged(fleet: str) -> None:
    code, written = on_a_terminal("--fleet", fleet, "--log", "gpt", "--json")
    assert code == 0
    assert written.isascii()
    assert not unsafe(written, "\n")
    lines = [json.loads(line)["line"] for line in written.splitlines()]
    log = records.RunPaths(str(Path(fleet).parent / "odd" / "root"), "gpt").attempt(1).log()
    assert lines == Path(log).read_bytes().decode().removesuffix("\n").split("\n")
