"""`make lab ARGS="--public COMMAND"`: the lab's shell with moto and gcp-storage-emulator, as a user starts it."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from simulators.lab_shell import WELCOME
from simulators.sshd import SSHD
from support.paths import REPOSITORY

pytestmark = pytest.mark.system
# What answers on the two endpoints of buckets, by its own words.
SERVICES = """
import json, os, urllib.request
def server(url):
    with urllib.request.urlopen(url, timeout=30) as answer:
        return answer.headers["Server"] + " " + answer.read(2000).decode(errors="replace")
print("services", json.dumps([server(os.environ["AWS_ENDPOINT_URL_S3"] + "/moto-api/"),
                              server(os.environ["STORAGE_EMULATOR_HOST"] + "/storage/v1/b")]))
"""
STEPS = "--model.seq_len 64 --trainer.train_batch_size 32 --trainer.num_train_steps"


def run_in_lab(directory: Path, script: str, timeout: float) -> str:
    """Run a script in the lab; return what it has printed. The installed packages are used as they are."""
    for name, path in (("make", shutil.which("make")), ("sshd", SSHD)):
        if not path:
            pytest.skip(f"no {name}: apt-get install make openssh-server")
    pytest.importorskip("moto", reason="needs moto: make setup")
    pytest.importorskip("gcp_storage_emulator", reason="needs gcp-storage-emulator: make setup")
    file = directory / "commands.sh"
    file.write_text(f"set -e\n{script}\n")
    argv = ["make", "-o", ".venv/.installed", f"BIN={Path(sys.executable).parent}", "lab"]
    done = subprocess.run(
        [*argv, f"ARGS=--public sh {shlex.quote(str(file))}"],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout[-3000:], done.stderr[-3000:])
    return done.stdout


def until(words: str) -> str:
    """Return shell commands that wait until the run's status has some words, for two minutes."""
    waiting = f"midstream --status --json --filter guide | grep -q {shlex.quote(words)}"
    return f"for n in $(seq 60); do {waiting} && break; sleep 0.5; done; {waiting}"


@pytest.mark.drawn
def test_public_lab_trains_into_bucket_of_moto(tmp_path: Path) -> None:
    (tmp_path / "services.py").write_text(SERVICES)
    printed = run_in_lab(
        tmp_path,
        f"""
{sys.executable} {tmp_path}/services.py
midstream --launch configs/gpt2_tiny.yaml --on cloud --run-id guide -- {STEPS} 20
{until('"finished"')}
midstream --verify guide
midstream --verify guide --json
""",
        timeout=300,
    )
    (services,) = [line for line in printed.splitlines() if line.startswith("services ")]
    amazon, google = json.loads(services.removeprefix("services "))
    assert "Moto" in amazon
    assert "storage#buckets" in google
    assert "lab-runs" in google
    assert "s3://lab-runs/mine/runs/guide/checkpoints/step-20-a001: verified" in printed
    result = json.loads(printed.splitlines()[-1])
    assert (result["event"], result["problems"]) == ("result", [])


@pytest.mark.slow  # three complete migrations, one of them to a slice of four workers
@pytest.mark.timeout(900)
def test_commands_that_public_lab_shows_run_in_their_order(tmp_path: Path) -> None:
    """Every command of the greeting: from a disk over the emulator's bucket to that of moto, and back to a disk."""
    shown = [line.strip() for line in WELCOME.format(fleet="", config="configs/gpt2_tiny.yaml").splitlines()]
    commands = [line.split("   ")[0] for line in shown if line.startswith("midstream ")]
    assert len(commands) == 8
    script = list[str]()
    for number, command in enumerate(commands):
        script += [f"echo 'command {number}'", command]
        if "--launch" in command:
            script.append(until('"state": "training"'))
    printed = run_in_lab(tmp_path, "\n".join(script), timeout=850)
    moves = [number for number, command in enumerate(commands) if "--migrate" in command]
    assert len(moves) == 3
    answers = dict(enumerate(printed.split("command ")[1:]))
    for number in moves:
        assert "guide: completed\ncertificate: valid" in answers[number], printed
    (verify,) = [number for number, command in enumerate(commands) if "--verify" in command]
    found = re.search(r"^s3://lab-runs/mine/runs/guide/checkpoints/\S+: verified", answers[verify], re.MULTILINE)
    assert found, printed
