"""Evidence of whether a trainer continued: files that were opened, checkpoints and rows that it wrote itself."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from midstream_core import records
from midstream_host.driver.opened_files import OpenedFiles
from support.trainers.script_trainer import write_script
from support.trainers.trainer_drivers import Driver, drivers, their_trainer


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Driver]]:
    with drivers(tmp_path) as factory:
        yield factory


def test_files_that_another_process_opens_are_seen(tmp_path: Path) -> None:
    (tmp_path / "ckpt" / "inner").mkdir(parents=True)
    names = ["ckpt/a", "ckpt/inner/b", "ckpt/inner/c"]
    for name in names:
        (tmp_path / name).write_text("x")
    opened = OpenedFiles(str(tmp_path), names)
    assert opened.problem == ""
    subprocess.run(["cat", tmp_path / "ckpt/inner/b"], check=True, capture_output=True)
    opened.look()
    assert opened.opened == {"ckpt/inner/b"}
    (tmp_path / "ckpt/a").read_text()
    opened.look(own=True)
    opened.close()
    assert opened.opened == {"ckpt/inner/b"}
    assert "at the same time" in opened.problem


def test_restart_that_ignores_its_checkpoint_is_not_recorded(make: Callable[..., Driver]) -> None:
    """It overwrote the run with another one, which began at step 0."""
    driver = make(flags="--ignore-checkpoint")
    driver.start()
    driver.wait("a checkpoint", driver.checkpoints)
    driver.send(records.STOP)
    assert driver.ended() == records.EXIT_DONE
    step = driver.status.step
    driver.start()
    driver.wait("what shows it", lambda: driver.status.contradiction if Path(driver.files.status()).exists() else "")
    assert driver.status.contradiction == f"the trainer logged step 0 after its start from step {step}"
    out = Path(driver.paths.dir, "work", "out")
    driver.wait("a later checkpoint", lambda: (out / f"ckpt-{step + 25}.json").exists())
    driver.send(records.STOP)
    assert driver.ended() == records.EXIT_DONE
    assert not [name for name in driver.checkpoints() if name.endswith("-a002")]
    evidence = records.TrainerEvidence.read(driver.files.trainer_evidence)
    assert (evidence.opened, evidence.files, evidence.opened_until) == (0, 1, "first row")
    assert evidence.lowest_row == 0


def test_restart_from_its_checkpoint_is_seen_to_read_it(make: Callable[..., Driver]) -> None:
    driver = make()
    driver.start()
    driver.wait("a checkpoint", driver.checkpoints)
    driver.send(records.STOP)
    assert driver.ended() == records.EXIT_DONE
    driver.start()
    driver.wait("a save", lambda: [name for name in driver.checkpoints() if name.endswith("-a002")])
    evidence = records.TrainerEvidence.read(driver.files.trainer_evidence)
    assert (evidence.opened, evidence.contradiction, evidence.unwatched) == (1, "", "")


def test_checkpoint_of_an_older_run_is_not_an_adopted_ones(make: Callable[..., Driver], tmp_path: Path) -> None:
    """It was sealed at step 5000 where the trainer was at 174, and the source was ended."""
    older = tmp_path / "theirs" / "out" / "ckpt-5000.json"
    file = write_script(tmp_path / "theirs")
    file.unlink()
    older.parent.mkdir()
    older.write_text(json.dumps({"step": 5000}))
    older.rename(tmp_path / "kept.json")
    hour_ago = time.time() - 3600
    os.utime(tmp_path / "kept.json", (hour_ago, hour_ago))
    shutil.rmtree(tmp_path / "theirs")
    with their_trainer(tmp_path / "theirs") as (file, theirs):
        shutil.copy2(tmp_path / "kept.json", older)  # its time is from before the trainer's start
        driver = make(file, {"directory": str(file.parent)})
        driver.start("--attach", str(theirs.pid))
        driver.wait("a checkpoint", driver.checkpoints)
        shutil.copy(tmp_path / "kept.json", older.with_name("ckpt-5001.json"))  # after it: the step shows it
        driver.wait("its refusal", lambda: "ahead of" in driver.status.message)
        assert re.search(r"ckpt-5001.json has step 5000, and \d+ steps are logged", driver.status.message)
        driver.send(records.STOP, epoch=2, owner="there")
        assert driver.ended() == records.EXIT_DONE
        sealed = records.Fence.read(driver.paths.fence).sealed_step
        assert sealed is not None
        assert sealed < 5000
        assert sealed % 25 == 0


LAGGING = """
import json, os, sys, time
out, done, step, history = sys.argv[1], sys.argv[2], 0, []
while True:
    step += 1
    history.append({"step": step, "loss": 1.0})
    with open(done, "w") as file:
        file.write(str(step))
    if step % 40 == 0:
        path = os.path.join(out, "checkpoint-%d" % step)
        os.makedirs(path)
        with open(os.path.join(path, "trainer_state.json"), "w") as file:
            json.dump({"log_history": history, "global_step": step}, file)
        with open(os.path.join(out, "ckpt-%d.json.tmp" % step), "w") as file:
            json.dump({"step": step}, file)
        os.rename(os.path.join(out, "ckpt-%d.json.tmp" % step), os.path.join(out, "ckpt-%d.json" % step))
    time.sleep(0.02)
"""


def test_stop_waits_where_the_source_of_metrics_lags(make: Callable[..., Driver], tmp_path: Path) -> None:
    """Steps after the newest checkpoint have no row in ``trainer_state.json``: they were given up without a word."""
    file = write_script(tmp_path / "lagging")
    (file.parent / "lagging.py").write_text(LAGGING)
    done = tmp_path / "done"
    text = re.sub(r"(?m)^(command: ).*$", rf'\1"{{python}} lagging.py {{out}} {done}"', file.read_text())
    file.write_text(re.sub(r"(?m)^metrics: .*$", "metrics: {source: trainer_state, first_step: 1}", text))
    driver = make(file)
    driver.start()
    driver.wait("a row of each step of a checkpoint", lambda: driver.checkpoints() and driver.rows())
    newest = driver.status.step
    driver.wait("steps after it", lambda: int(done.read_text() or 0) > newest + 10)
    was = int(done.read_text())
    driver.send(records.STOP, epoch=2, owner="there")
    assert driver.ended() == records.EXIT_DONE
    sealed = records.Fence.read(driver.paths.fence).sealed_step
    assert sealed is not None
    assert sealed >= was, "no step before the stop was given up"


def test_wandb_writes_each_row_soon(make: Callable[..., Driver], tmp_path: Path) -> None:
    """W&B 0.31 writes every 15 s, and loses the rest when the trainer is ended."""
    file = write_script(tmp_path / "code")
    show = "import os, sys, time\nopen(sys.argv[1] + '/seen', 'w').write(repr(dict(os.environ)))\ntime.sleep(60)\n"
    (file.parent / "show.py").write_text(show)
    text = re.sub(r"(?m)^(command: ).*$", r'\1"{python} show.py {out}"', file.read_text())
    file.write_text(re.sub(r"(?m)^metrics: .*$", 'metrics: {source: wandb, path: "{out}/**/run-*.wandb"}', text))
    driver = make(file)
    driver.start()
    seen = Path(driver.paths.dir, "work", "out", "seen")
    driver.wait("its environment", lambda: seen.exists() and seen.read_text().endswith("}"))
    assert "'WANDB_X_TRANSACTION_LOG_FLUSH_INTERVAL': '1'" in seen.read_text()
