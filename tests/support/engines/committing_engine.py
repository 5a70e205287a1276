"""An engine without a model, for tests of who may commit: it starts in a fraction of a second.

Its package is the engine's own but for ``train.py``: attempt, start number, fence, status and signals are the real
ones. A checkpoint is a manifest. Under the run's lock, each commit is also appended to a file beside the run's
directory: the order in which engines have committed.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import midstream_core
from midstream_core import records

TRAIN = '''
import dataclasses, json, os, sys, time
from midstream_core import records
from midstream_core.attempt import save_fence, start_number
from midstream_core.attempt.errors import FencedError
from midstream_engine.signals import Signals
from midstream_engine.loop.fence_reader import FenceReader
from midstream_engine.runtime.attempt_record import lineage_entry, open_attempt, record_start
from midstream_core.attempt.earlier_process import running_earlier
from midstream_core.attempt.status_file import StatusFile

EVERY = 10  # steps from one checkpoint to the next
signals = Signals()
signals.install()
attempt = open_attempt(os.environ["MIDSTREAM_ROOT"], os.environ["RUN_ID"], os.environ)
paths, files = attempt.paths, attempt.files
if refused := running_earlier(files.status(0), 5.0):
    sys.exit(refused)
status = StatusFile(
    files.status(0), run_id=paths.run_id, attempt=attempt.number, epoch=attempt.epoch, num_train_steps=10**6,
    host=os.uname().nodename,
)


def record_signal(name, lost):
    status.end(records.STOPPED, f"stopped by {name} while {status.value.state}: there was no update to save")
    return 0


def newest(fence):
    found = {}
    for name in os.listdir(paths.checkpoints):
        manifest = records.Manifest.read_or_none(os.path.join(paths.checkpoints, name, records.MANIFEST))
        if manifest is not None and fence.accepts(manifest.epoch, manifest.step, manifest.start):
            found[manifest.step] = name
    return found[max(found)] if found else None


def commit(step):
    """Write a manifest where the fence accepts it."""
    name = records.checkpoint_name(step, attempt.number)
    with records.locked(paths.lock):
        save_fence.check(paths, attempt.epoch, step, start)
        row = {"step": step, "attempt": attempt.number, "start": start, "restored": restored, "saves": signals.saves}
        with open(paths.dir + ".commits.jsonl", "a") as file:
            file.write(json.dumps(row) + "\\n")
        manifest = os.path.join(paths.checkpoint(name), records.MANIFEST)
        if os.path.exists(manifest):
            raise FileExistsError(manifest)
        os.makedirs(paths.checkpoint(name), exist_ok=True)
        records.Manifest(
            format=records.FORMAT, version=records.FORMAT_VERSION, run_id=paths.run_id, step=step,
            attempt=attempt.number, epoch=attempt.epoch, created=time.time(), root_digest="0" * 64, arrays=[],
            objects=[], start=start,
        ).write(manifest)
    status.update(checkpoint=name)
    status.write()  # from here on it is acknowledged


signals.record_end_with(record_signal)
status.update(state=records.RESTORING)
start = start_number.take(paths, attempt.epoch, newest).start
status.update(start=start)
restored = step = 0
if name := newest(records.Fence.read(paths.fence)):
    restored = step = records.parse_checkpoint_name(name)[0]
    status.update(checkpoint=name)
entry = lineage_entry(attempt, devices=[], first_step=step, checkpoint=name, root_digest=None, migration="")
record_start(attempt, entry)
reader = FenceReader(paths, status)
command = records.Command.read_or_none(files.command_file)
answered = command.sequence if command else 0
signals.answer_at_boundaries()
status.update(state=records.TRAINING, step=step)
saves = 0
try:
    while True:
        time.sleep(0.02)
        epoch = reader.epoch()
        if epoch > attempt.epoch or reader.superseded(attempt.epoch, start):
            reader.refuse(epoch, step, epoch == attempt.epoch)
        step += 1
        status.update(step=step)
        command = records.Command.read_or_none(files.command_file)
        commanded = command is not None and command.sequence > answered and command.action == records.STOP
        stops = signals.stops or commanded
        if step % EVERY == 0 or stops or signals.saves > saves:
            saves = signals.saves
            commit(step)
        if stops:
            if commanded:
                status.update(acknowledged=command.sequence)
            status.update(message=f"stopped by {signals.first_stop or 'a command'} at step {step}, saved")
            status.update(state=records.STOPPED)
            signals.ignore()
            break
except (FencedError, save_fence.FenceRejectedError) as error:
    print(error, flush=True)
    status.update(state=records.FAILED, message=str(error))
    os._exit(records.EXIT_FENCED)
status.close()
'''


def write_committing_engine(directory: Path) -> Path:
    """Write the packages into ``directory``, and return it."""
    present = Path(midstream_core.__file__).parents[1]
    for name in ("midstream_core", "midstream_host", "midstream_engine"):
        shutil.copytree(present / name, directory / name, ignore=shutil.ignore_patterns("__pycache__"))
    (directory / "midstream_engine" / "train.py").write_text(TRAIN)
    return directory


@dataclass
class Commits:
    """Commits of a run's engines, and the newest acknowledged step."""

    paths: records.RunPaths
    acknowledged: int = 0  # step of the newest checkpoint that a status has named

    def rows(self) -> list[dict[str, Any]]:
        """Return the commits in the order in which they were made."""
        file = Path(self.paths.dir + ".commits.jsonl")
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def notice(self, status: records.Status | None) -> None:
        """Take what a status names as acknowledged."""
        if status is not None and status.checkpoint and (parsed := records.parse_checkpoint_name(status.checkpoint)):
            self.acknowledged = max(self.acknowledged, parsed[0])

    def check(self) -> None:
        """Assert that one start at a time has committed, and that every acknowledged step is in the lineage."""
        fence, directory = records.Fence.read_or_none(self.paths.fence), Path(self.paths.checkpoints)
        manifests = [records.Manifest.read(str(path)) for path in directory.glob(f"*/{records.MANIFEST}")]
        written = {(one.start, one.step) for one in manifests}
        rows = [row for row in self.rows() if (row["start"], row["step"]) in written]  # the last may be unfinished
        starts = [row["start"] for row in rows]
        assert starts == sorted(starts), f"an older start has committed after a newer one: {rows[-40:]}"
        for before, after in pairwise(rows):
            assert after["step"] > before["step"], f"a step was committed twice: {before} {after}"
            if after["start"] != before["start"]:
                assert after["restored"] == before["step"], f"{after} does not continue {before}"
        accepted = sorted(one.step for one in manifests if fence and fence.accepts(one.epoch, one.step, one.start))
        assert max(accepted, default=0) >= self.acknowledged, f"acknowledged {self.acknowledged}, has {accepted}"
        assert accepted == [row["step"] for row in rows], "each commit is in the lineage"
