"""The guide's migration in a terminal of 80x24: SSH host, bucket, slice created for it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from midstream_core import records
from simulators.google.tpu_api import TpuServer, tpu_server
from simulators.object_stores.bucket import BucketServer
from simulators.sshd import Lab, lab
from support.command_line import SLOWER, Run, runs
from support.guide import begin
from support.tui.terminal import TMUX, Terminal

__all__ = ["lab", "runs", "tpu_server"]

pytestmark = [pytest.mark.system, pytest.mark.skipif(TMUX is None, reason="no tmux: apt-get install tmux")]

ENGINE_TIMEOUT = 300.0  # seconds for work of engines
TRAINING = (*SLOWER, "--trainer.num_train_steps", "100000", "--trainer.checkpointer.keep", "[{every: 20}]")


@pytest.mark.slow  # two engines start on two cores
@pytest.mark.timeout(1200)
def test_terminal_wizard_creates_slice_and_migrates_to_it(
    tmp_path_factory: pytest.TempPathFactory,
    lab: Lab,
    tpu_server: TpuServer,
    bucket: BucketServer,
    runs: Callable[[Path | str, str], Run],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MIDSTREAM_STATE", str(lab.directory / "state"))
    guide = begin(lab, tpu_server, bucket, "nano", price_per_hour="8")
    gpu, pod, file = guide.gpu, guide.pod, guide.file
    source, there = runs(gpu.root, "nano"), runs(pod.roots[0], "nano")
    source.wait_step(25, ENGINE_TIMEOUT)

    terminal = Terminal(tmp_path_factory.mktemp("tmux"))
    names = (*tpu_server.environment, *bucket.environment, "MIDSTREAM_STATE")
    env = {**{name: os.environ[name] for name in names}, "TERM": "screen-256color"}
    try:
        terminal.start([sys.executable, "-m", "midstream", "--fleet", str(file)], env)
        terminal.wait(lambda screen: "nano" in screen and "training" in screen, "the run")
        terminal.press("m")
        terminal.wait(
            lambda screen: "would be created as" in screen and "v3-32, spot: cheaper" in screen,
            "its price",
            ENGINE_TIMEOUT,
        )
        terminal.press("c")
        terminal.wait(lambda screen: "saved at the stop" in screen, "the checkpoints")
        terminal.press("j", "Enter")
        terminal.wait(lambda screen: "checkpoint latest (c)" in screen, "a checkpoint")
        terminal.press("o")
        terminal.wait(lambda screen: "SEQUENCE" in screen, "the modes")
        terminal.press("j", "Enter")
        terminal.wait(
            lambda screen: "mode cold (o)" in screen and "would be created" in screen, "a mode", ENGINE_TIMEOUT
        )
        terminal.press("Enter")
        question = terminal.wait(lambda screen: "type pod and press enter" in screen, "the question")
        words = " ".join(question.split())
        assert "spot: cheaper, and preempted whenever the provider needs it; 8 an hour." in words
        assert tpu_server.created == [], "nothing is created before the name is typed"
        terminal.press("pod", "Enter")
        planned = terminal.wait(
            lambda screen: (
                "mode cold (o), checkpoint latest (c)" in screen and re.search(r"to +pod  2 devices", screen)
            ),
            "its plan with the earlier choices",
            ENGINE_TIMEOUT,
        )
        assert len(tpu_server.created) == 1
        assert "> pod " in planned
        assert "pod-0" not in planned, "a worker is no target"
        terminal.press("Enter")
        ready = terminal.wait(
            lambda screen: "Ready." in screen or "Cannot migrate" in screen, "preflight", ENGINE_TIMEOUT
        )
        assert "Ready." in ready, ready
        terminal.press("Enter")
        terminal.wait(lambda screen: "type nano and press enter" in screen, "the question")
        terminal.press("nano", "Enter")
        terminal.wait(lambda screen: "Progress" in screen and "1 migrating" in screen, "its progress", ENGINE_TIMEOUT)
        proof = terminal.wait(
            lambda screen: "✓ certified" in screen and "✓ state" in screen, "the certificate", ENGINE_TIMEOUT
        )
        for claim in ("state", "data", "reference losses"):
            assert re.search(rf"✓ {claim} +verified", proof), proof
        terminal.wait(lambda screen: "✓ completed" in screen, "the end of the migration", ENGINE_TIMEOUT)
        terminal.press("Escape")
        terminal.wait(lambda screen: re.search(r"nano +pod-0 +● training", screen), "the run there", ENGINE_TIMEOUT)
        terminal.press("q")
        assert terminal.wait_exit(100)[0] == 0
    finally:
        print(terminal.screen)
        terminal.close()
    assert (there.fence.owner, source.fence.epoch) == ("pod", there.fence.epoch)
    assert not source.running
    assert there.running
    restored = records.Restore.read(there.paths.attempt(there.attempt).restore)
    assert f"/{restored.checkpoint}/" in "".join(bucket.blobs("runs", "mine/runs/")), "from the bucket"
