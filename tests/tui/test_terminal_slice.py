"""The guide's move in a real terminal of 80x24: from an SSH host over a bucket to a slice that is made for it."""

from __future__ import annotations

import os
import re
import sys

import pytest

from midstream_engine import records
from simulators.bucket import BucketServer
from simulators.sshd import Lab, lab
from simulators.tpu_api import TpuServer, tpu_server
from support.command_line import SLOWER, runs
from support.guide import begin
from tui.terminal import TMUX, Terminal

__all__ = ["lab", "runs", "tpu_server"]

pytestmark = [pytest.mark.system, pytest.mark.skipif(TMUX is None, reason="no tmux: apt-get install tmux")]

PATIENCE = 300.0  # seconds for what engines do
TRAINING = (*SLOWER, "--trainer.num_train_steps", "100000", "--trainer.checkpointer.keep", "[{every: 20}]")


@pytest.mark.slow  # two engines start, on two cores
@pytest.mark.timeout(1200)
def test_a_slice_is_asked_for_made_and_moved_to_from_the_wizard(
    tmp_path_factory: pytest.TempPathFactory,
    lab: Lab,
    tpu_server: TpuServer,
    bucket: BucketServer,
    runs,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MIDSTREAM_STATE", str(lab.directory / "state"))
    guide = begin(lab, tpu_server, bucket, "nano", price_per_hour="8")
    gpu, pod, file = guide.gpu, guide.pod, guide.file
    source, there = runs(gpu.root, "nano"), runs(pod.roots[0], "nano")
    source.wait_step(25, PATIENCE)

    terminal = Terminal(tmp_path_factory.mktemp("tmux"))
    names = (*tpu_server.environment, *bucket.environment, "MIDSTREAM_STATE")
    env = {**{name: os.environ[name] for name in names}, "TERM": "screen-256color"}
    try:
        terminal.start([sys.executable, "-m", "midstream", "--fleet", str(file)], env)
        terminal.wait(lambda screen: "nano" in screen and "training" in screen, "the run")
        terminal.press("m")
        terminal.wait(lambda screen: "can be made: v3-32, spot: cheaper" in screen, "what it would cost", PATIENCE)
        terminal.press("c")
        terminal.wait(lambda screen: "Move which state?" in screen, "the checkpoints")
        terminal.press("j", "Enter")
        terminal.wait(lambda screen: "checkpoint latest (c)" in screen, "a checkpoint")
        terminal.press("o")
        terminal.wait(lambda screen: "How does it cross over?" in screen, "the modes")
        terminal.press("j", "Enter")
        terminal.wait(lambda screen: "mode stop (o)" in screen and "can be made" in screen, "a mode", PATIENCE)
        terminal.press("Enter")
        asked = terminal.wait(lambda screen: "type pod and press enter" in screen, "the question")
        assert "spot: cheaper, and taken\n    back whenever the provider needs it; 8 an hour." in asked
        assert tpu_server.created == [], "nothing is asked for before its name is typed"
        terminal.press("pod", "Enter")
        planned = terminal.wait(
            lambda screen: (
                "mode stop (o), checkpoint latest (c)" in screen and re.search(r"to +pod  2 devices", screen)
            ),
            "its plan, with what was chosen before",
            PATIENCE,
        )
        assert len(tpu_server.created) == 1
        assert "> pod " in planned
        assert "pod-0" not in planned, "a worker is no target"
        terminal.press("Enter")
        ready = terminal.wait(lambda screen: "Ready." in screen or "cannot be moved" in screen, "preflight", PATIENCE)
        assert "Ready." in ready, ready
        terminal.press("Enter")
        terminal.wait(lambda screen: "type nano and press enter" in screen, "the question")
        terminal.press("nano", "Enter")
        terminal.wait(lambda screen: "Progress" in screen and "1 moving" in screen, "its progress", PATIENCE)
        proof = terminal.wait(
            lambda screen: "✓ certified" in screen and "✓ state" in screen, "the certificate", PATIENCE
        )
        for claim in ("state", "data", "reference losses"):
            assert re.search(rf"✓ {claim} +verified", proof), proof
        terminal.wait(lambda screen: "✓ completed" in screen, "the end of the move", PATIENCE)
        terminal.press("Escape")
        terminal.wait(lambda screen: re.search(r"nano +pod-0 +● training", screen), "the run there", PATIENCE)
        terminal.press("q")
        assert terminal.wait_end(100)[0] == 0
    finally:
        print(terminal.screen)
        terminal.close()
    assert (there.fence.owner, source.fence.epoch) == ("pod", there.fence.epoch)
    assert not source.alive
    assert there.alive
    restored = records.Restore.read(there.paths.attempt(there.attempt).restore)
    assert f"/{restored.checkpoint}/" in "".join(bucket.blobs("runs", "mine/runs/")), "from the bucket"
