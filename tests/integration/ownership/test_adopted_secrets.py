"""Secrets of a running trainer: `--adopt` and `--init-run` print and store none of them."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from simulators.sshd import Lab
from support.command_line import Run, midstream
from support.trainers.script_runs import STEPS
from support.trainers.script_trainer import write_script

# Each is shown by the name of its flag, by its own form, or within a longer word.
FLAGS = {
    "--hf-token": "hf_" + "xY7" * 8, "--wandb_key": "0badc0de0badc0de", "--upload": '{"token": "inner-5ecret-value"}',
    "--url": "https://me:pa55word-of-url@registry/x",
}  # fmt: skip
VARIABLES = {"WANDB_API_KEY": "e5f6-in-the-environment", "MY_PASSWORD": "also-in-the-environment"}
SECRETS = ("xY7xY7", "0badc0de", "inner-5ecret-value", "pa55word-of-url", *VARIABLES.values())


def assert_none(text: str, where: str) -> None:
    for secret in SECRETS:
        assert secret not in text, f"{where} has {secret}"


@pytest.mark.drawn
@pytest.mark.parametrize("umask", [0o000, 0o022])
def test_adopted_trainer_keeps_its_secrets(
    lab: Lab, runs: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, umask: int
) -> None:
    here = lab.host("here")
    fleet = lab.fleet_file(here=here.config)
    directory = tmp_path / "theirs"
    file = write_script(directory, steps=STEPS, every=25)
    text = file.read_text()
    file.unlink()
    (directory / "out").mkdir()
    program = directory / "train.py"
    added = "".join(f"flags.add_argument({flag!r})\n" for flag in FLAGS)
    program.write_text(
        program.read_text().replace("options = flags.parse_args()\n", f"{added}options = flags.parse_args()\n")
    )
    argv = ["train.py", "--out", "out", "--steps", str(STEPS), "--every", "25"]
    argv += [word for pair in FLAGS.items() for word in pair]
    before = os.umask(umask)
    theirs = subprocess.Popen([sys.executable, *argv], cwd=directory, env={**os.environ, **VARIABLES})
    try:
        monkeypatch.chdir(tmp_path)
        written = midstream("--fleet", fleet, "--init-run", f"here:{directory}")
        assert written.code == 0, written.stderr
        made = Path("run.yaml")
        assert_none(made.read_text() + written.stdout + written.stderr, "--init-run")
        assert "$HF_TOKEN" in made.read_text()
        assert "secrets of the command line are replaced by" in made.read_text()
        assert stat.S_IMODE(made.stat().st_mode) == 0o600
        file.write_text(text)
        adopted = midstream("--fleet", fleet, "--adopt", f"here:{directory}", "--run-id", "r")
        assert adopted.code == 0, adopted.stderr
        said = adopted.stdout + adopted.stderr
        assert_none(said, "--adopt")
        assert "what looks like a secret is shown as $HF_TOKEN, $WANDB_KEY, $SECRET_WORD, $SERVICE_URL" in said
        assert "is not stored" in said
        run = runs(here.root, "r")
        run.wait(lambda run: bool(run.checkpoints()) and bool(run.rows()), "a checkpoint")
        stopped = midstream("--fleet", fleet, "--stop", "r")
        assert stopped.code == 0, stopped.stderr
        assert_none(stopped.stdout + stopped.stderr, "--stop")
    finally:
        os.umask(before)
        theirs.kill()
        theirs.wait()
    state = Path(os.environ["MIDSTREAM_STATE"])
    for path in [*here.root.rglob("*"), *state.rglob("*")]:
        if path.is_file() and not path.is_symlink() and "site-packages" not in path.parts:
            assert_none(path.read_bytes().decode(errors="replace"), str(path))
    private = [Path(run.paths.config), Path(run.paths.attempt(1).log())]
    assert {stat.S_IMODE(path.stat().st_mode) for path in private} == {0o600}
    assert stat.S_IMODE(state.stat().st_mode) == stat.S_IMODE(os.stat(run.paths.attempts).st_mode) == 0o700
