"""The order of events in the training loop: one update is in flight while the one before is settled."""

from __future__ import annotations

import errno
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from midstream_core import records
from midstream_core.attempt.errors import EngineError, FencedError
from midstream_core.attempt.save_fence import FenceUnreadableError
from midstream_core.attempt.status_file import StatusFile
from midstream_engine.computation.finiteness import FINITE, INFINITE, float_names
from midstream_engine.computation.setup import Setup, prepare
from midstream_engine.computation.train_step import StepResult
from midstream_engine.config import load_config
from midstream_engine.data.errors import DataError
from midstream_engine.loop import flops, training_loop
from midstream_engine.loop.requests import CommandFile, Requests
from midstream_engine.loop.running_update import RunningUpdate
from midstream_engine.loop.saving import NotSavedError
from midstream_engine.loop.training_loop import Loop
from midstream_engine.runtime.attempt_record import AttemptRecord
from midstream_engine.signals import Signals
from support.paths import CONFIGS

STEPS = 6
Event = tuple[str, Any]


class Loss:
    """The loss of an update. It is ready after ``polls`` polls, of which the last one calls ``at_last``."""

    def __init__(self, value: float, polls: int = 1_000_000, at_last: Callable[[], None] = lambda: None) -> None:
        self._value, self._polls, self._at_last = value, polls, at_last

    def __float__(self) -> float:
        return self._value

    def copy_to_host_async(self) -> None:
        """Nothing to copy."""

    def is_ready(self) -> bool:
        self._polls -= 1
        if self._polls == 0:
            self._at_last()
        return self._polls <= 0


class Stage:
    """A loop whose programs, saver and recorder only note what happens; its state is the number of updates."""

    def __init__(self, root: Path, setup: Setup, *, saves: Sequence[int] = (), evaluates: bool = False) -> None:
        self.events: list[Event] = []
        self.rows: list[dict[str, Any]] = []
        self.signals = Signals()
        self.losses: dict[int, Loss] = {}
        self.during: dict[int, Callable[[], None]] = {}  # called while an update is dispatched
        self.bad: set[int] = set()  # updates after which the first array is infinite
        self.full = False  # the last save fails
        self._saves, self._arrays = saves, len(float_names(setup.template))
        self.paths = records.RunPaths(str(root), "r")
        attempt = AttemptRecord(self.paths, 1, 1, "here", launched=False)
        Path(attempt.files.dir).mkdir(parents=True)
        records.first_fence("here").write(self.paths.fence)
        self.status = StatusFile(str(root / "status.json"), run_id="r", attempt=1, epoch=1, num_train_steps=STEPS)
        self.status.close()
        evaluate = self._evaluate if evaluates else None
        compiled: Any = SimpleNamespace(setup=setup, programs=SimpleNamespace(step=self._step, evaluate=evaluate))
        saver: Any = SimpleNamespace(
            busy=False, failed=0, due=lambda step, _now: step in saves, save=self._save, poll=lambda *_: None,
            close=lambda: None, postponed=False,
        )  # fmt: skip
        recorder: Any = SimpleNamespace(write=self._write)
        requests = Requests(self.signals, CommandFile(attempt.files.command_file))
        state: Any = 0
        self.loop = Loop(compiled, saver, requests, attempt, self.status, recorder, state, 0)

    def _step(self, state: int, number: Any, _tokens: Any, _mask: Any) -> tuple[int, StepResult]:
        index = int(number)
        assert state == index
        self.events.append(("dispatch", index))
        self.during.get(index, lambda: None)()
        kinds = jnp.full(self._arrays, FINITE).at[0].set(INFINITE if index in self.bad else FINITE)
        loss: Any = self.losses.get(index) or Loss(1.0)
        return state + 1, StepResult(loss, jnp.float32(1), jnp.float32(1), kinds, None)

    def _evaluate(self, state: int) -> dict[str, float]:
        self.events.append(("evaluate", state))
        return {"eval/loss": 1.0}

    def _save(
        self,
        state: int,
        step: int,
        _reason: str,
        *,
        last: bool = False,
        callback: Callable[[], None] | None = None,
        not_finite: str = "",
        no_data: bool = False,
    ) -> None:
        assert state == step
        self.events.append(("refused" if not_finite else "save", not_finite or state))
        if last and self.full:
            raise NotSavedError("the disk is full")
        if callback is not None:
            callback()

    def send(self, action: str, step: int | None = None) -> None:
        records.Command(action, step=step).write(self.paths.attempt(1).command_file)

    def _write(self, row: dict[str, Any]) -> None:
        self.events.append(("row", row["global_step"]))
        self.rows.append(row)


@pytest.fixture(scope="module")
def setups(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Setup]:
    root = str(tmp_path_factory.mktemp("root"))

    def make(*flags: str) -> Setup:
        number = ("--trainer.num_train_steps", str(STEPS))
        arguments = ["--config_path", str(CONFIGS / "gpt2_tiny.yaml"), *number, *flags]
        return prepare(load_config(arguments).config, root, None, jax.devices()[:1])

    return make


def test_next_update_is_dispatched_before_the_row_of_the_last(tmp_path: Path, setups: Any) -> None:
    stage = Stage(tmp_path, setups())
    assert stage.loop.run() == records.FINISHED
    assert stage.events == [
        ("dispatch", 0),
        *(event for index in range(1, STEPS) for event in (("dispatch", index), ("row", index - 1))),
        ("row", STEPS - 1),
        ("save", STEPS),
    ]


def test_update_computed_before_the_loop_is_settled_first(tmp_path: Path, setups: Any) -> None:
    stage = Stage(tmp_path, setups("--trainer.steps_per_eval", "1"), saves=(1,), evaluates=True)
    batch = stage.loop._setup.batches.batch(0)
    stage.loop.state, result = stage._step(0, 0, None, None)  # type: ignore[assignment]
    first = RunningUpdate(0, batch, result, dispatched=5.0, loading=0.5, completed=(7.0, 1234.5))
    stage.during[2] = lambda: stage.signals._take(signal.SIGTERM)
    assert stage.loop.run(first) == records.STOPPED
    assert stage.events[:6] == [
        ("dispatch", 0), ("evaluate", 1), ("row", 0), ("save", 1), ("dispatch", 1), ("evaluate", 2),
    ]  # fmt: skip
    row = stage.rows[0]
    assert (row["time"], row["throughput/duration"], row["throughput/loading_time"]) == (1234.5, 2.0, 0.5)


def test_infinite_update_before_the_loop_is_not_saved(tmp_path: Path, setups: Any) -> None:
    stage = Stage(tmp_path, setups())
    stage.bad = {0}
    batch = stage.loop._setup.batches.batch(0)
    stage.loop.state, result = stage._step(0, 0, None, None)  # type: ignore[assignment]
    with pytest.raises(EngineError, match="infinity"):
        stage.loop.run(RunningUpdate(0, batch, result, 5.0, 0.5, (7.0, 1234.5)))
    assert not [event for event in stage.events if event[0] in ("row", "save")]


def test_save_and_evaluation_find_their_own_state_checked(tmp_path: Path, setups: Any) -> None:
    stage = Stage(tmp_path, setups("--trainer.steps_per_eval", "4"), saves=(2,), evaluates=True)
    assert stage.loop.run() == records.FINISHED
    assert stage.events == [
        ("dispatch", 0), ("dispatch", 1), ("row", 0), ("row", 1), ("save", 2),
        ("dispatch", 2), ("dispatch", 3), ("row", 2), ("evaluate", 4), ("row", 3),
        ("dispatch", 4), ("dispatch", 5), ("row", 4), ("evaluate", 6), ("row", 5), ("save", 6),
    ]  # fmt: skip


def test_state_that_is_not_finite_is_attributed_to_its_update(tmp_path: Path, setups: Any) -> None:
    ignored = ("--trainer.crash_on_nan", "false", "--trainer.crash_on_inf", "false")
    stage = Stage(tmp_path, setups(*ignored), saves=(2, 4))
    stage.bad = {2, 3, 4, 5}
    assert stage.loop.run() == records.FINISHED
    first = float_names(stage.loop._setup.template)[0]
    reason = f"infinity in {first}, since step 2"
    assert [event for event in stage.events if event[0] in ("save", "refused")] == [
        ("save", 2), ("refused", reason), ("refused", reason),
    ]  # fmt: skip


@pytest.mark.parametrize("loss", [float("nan"), 1.0])
def test_fatal_update_is_named_and_nothing_after_it_is_saved(loss: float, tmp_path: Path, setups: Any) -> None:
    stage = Stage(tmp_path, setups(), saves=(4,))
    stage.losses[2] = Loss(loss)
    stage.bad = {2} if loss == 1.0 else set()
    with pytest.raises(EngineError, match=r"step 2 is (not finite: infinity in .*|NaN) \(hint: trainer.crash_on_"):
        stage.loop.run()
    assert stage.events[-2:] == [("dispatch", 3), ("row", 1)] or stage.events[-1] == ("dispatch", 3)
    assert stage.loop.step == 3
    assert not [event for event in stage.events if event[0] == "save"]


def test_request_during_a_long_update_acts_at_its_end(tmp_path: Path, setups: Any) -> None:
    """The next update is dispatched only when the running one is about to end."""
    stage = Stage(tmp_path, setups())

    def stop() -> None:
        stage.signals.stops += 1

    stage.losses[0] = Loss(1.0, polls=3, at_last=stop)
    stage.loop._duration = 1e5  # seconds, of the update before
    assert stage.loop.run() == records.STOPPED
    assert stage.events == [("dispatch", 0), ("row", 0), ("save", 1)]


def test_start_without_its_first_batch_saves_nothing(
    tmp_path: Path, setups: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(tmp_path, setups())

    def batch(_: int) -> Any:
        raise DataError("the bucket does not answer")

    monkeypatch.setattr(stage.loop._reader, "batch", batch)
    with pytest.raises(DataError):
        stage.loop.run()
    assert stage.events == []


def test_signal_stops_although_a_command_says_a_later_step(tmp_path: Path, setups: Any) -> None:
    """Both arrive at one boundary. The sender of the signal will not wait."""
    stage = Stage(tmp_path, setups())

    def both() -> None:
        stage.send(records.STOP, STEPS - 1)
        stage.signals.stops += 1

    stage.during[1] = both
    assert stage.loop.run() == records.STOPPED
    assert stage.events[-1] == ("save", 2)


def test_fence_that_is_unreadable_at_the_last_save_is_read_again(
    tmp_path: Path, setups: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was readable at the boundary: the disk stopped to answer while the save began."""
    stage = Stage(tmp_path, setups())
    saver: Any = stage.loop._saver
    monkeypatch.setattr(training_loop, "FENCE_POLL_INTERVAL", 0.0)

    def unreadable(*arguments: Any, **named: Any) -> None:
        saver.postponed, saver.save = True, stage._save
        raise NotSavedError("step 6 not saved: fence.json: Stale file handle")

    saver.save = unreadable
    assert stage.loop.run() == records.FINISHED
    assert stage.events[-1] == ("save", STEPS)


def test_signal_ends_the_attempt_that_cannot_save_for_a_command(tmp_path: Path, setups: Any) -> None:
    stage = Stage(tmp_path, setups())
    stage.full = True

    def both() -> None:
        stage.send(records.STOP)
        stage.signals.stops += 1

    stage.during[1] = both
    with pytest.raises(NotSavedError):
        stage.loop.run()
    assert stage.events[-1] == ("save", 2)


def test_full_disk_after_a_save_on_command_ends_nothing(
    tmp_path: Path, setups: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(tmp_path, setups())

    def full(**_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    stage.during[1] = lambda: stage.send(records.SAVE)
    monkeypatch.setattr(stage.status, "_write", full)
    assert stage.loop.run() == records.FINISHED
    assert stage.events.count(("save", 2)) == 1
    assert stage.status.value.acknowledged == 1


@pytest.mark.parametrize("saves", [True, False])
def test_stop_on_a_full_disk_tries_to_save(
    saves: bool, tmp_path: Path, setups: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checkpoints may be on another disk, or in a bucket. A command that cannot be carried out is rejected."""
    stage = Stage(tmp_path, setups())
    stage.full = not saves

    def full(**_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def stop() -> None:
        if saves:
            stage.signals.stops += 1
        else:
            stage.send(records.STOP)

    stage.during[1] = stop
    monkeypatch.setattr(stage.status, "_write", full)
    if saves:
        assert stage.loop.run() == records.STOPPED
        assert stage.events[-1] == ("save", 2)
        return
    with pytest.raises(NotSavedError):  # of the last save
        stage.loop.run()
    assert stage.status.value.rejected == 1
    assert stage.events[-1] == ("save", STEPS)


def test_signal_stops_although_the_fence_cannot_be_sealed(
    tmp_path: Path, setups: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command comes at the same boundary, and the signal only once."""
    stage = Stage(tmp_path, setups())

    def unreadable(*_: Any, **__: Any) -> None:
        raise FenceUnreadableError("fence.json cannot be read")

    def both() -> None:
        records.Command(records.STOP, epoch=2, owner="there").write(stage.paths.attempt(1).command_file)
        stage.signals.stops += 1

    stage.during[1] = both
    monkeypatch.setattr(training_loop, "seal_together", unreadable)
    assert stage.loop.run() == records.STOPPED
    assert stage.events[-1] == ("save", 2)
    assert (stage.status.value.rejected, stage.status.value.message) == (1, "fence.json cannot be read")


def test_row_of_the_running_update_is_written_before_the_end(tmp_path: Path, setups: Any) -> None:
    stage = Stage(tmp_path, setups())
    fence = records.Fence.read(stage.paths.fence)
    stage.during[3] = lambda: fence.sealed(2, "there", 3).write(stage.paths.fence)
    with pytest.raises(FencedError, match=r"belongs to there .* ends at step 4"):
        stage.loop.run()
    assert stage.events[-1] == ("row", 3)


def test_row_and_state_are_written_before_an_error_of_the_data(
    tmp_path: Path, setups: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(tmp_path, setups())
    stage.losses[2] = Loss(1.0, polls=1)
    prepared = stage.loop._prepare

    def prepare_three(index: int) -> Any:
        if index == 3:
            raise EngineError("the data cannot be read")
        return prepared(index)

    monkeypatch.setattr(stage.loop, "_prepare", prepare_three)
    with pytest.raises(EngineError, match="the data cannot be read"):
        stage.loop.run()
    assert [event for event in stage.events if event[0] != "dispatch"][:4] == [
        ("row", 0), ("row", 1), ("row", 2), ("save", 3),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "arithmetic", "peak"),
    [
        (("--trainer.mp", "p=f32,c=bfloat16"), ("bfloat16", None), 4e12),
        (("--trainer.mp", "p=f32,c=f32"), ("float32", "highest"), 1e12),
        (("--trainer.mp", "f32", "--trainer.matmul_precision", "default"), ("float32", None), 2e12),
        (("--trainer.mp", "f32"), None, None),
    ],
)
def test_rows_have_utilisation_by_both_conventions(
    flags: tuple[str, ...], arithmetic: tuple[str, str | None] | None, peak: float | None, tmp_path: Path, setups: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """By the peak of the run's arithmetic; none where it is not known."""
    monkeypatch.setattr(flops, "peak", lambda _kind, *given: {arithmetic: peak}.get(given))
    setup = setups(*flags)
    stage = Stage(tmp_path, setup)
    assert stage.loop.run() == records.FINISHED
    names = {name for row in stage.rows for name in row if "mfu" in name}
    if peak is None:
        assert names == set()
        return
    assert names == {"throughput/mfu_full_attention", "throughput/mfu_causal_attention"}
    for row in stage.rows:
        for name, causal in (("full", False), ("causal", True)):
            each = flops.flops_per_token(setup.config.model, setup.tokenizer.vocab_size, causal=causal)
            wanted = each * row["throughput/tokens_per_second"] / peak
            assert row[f"throughput/mfu_{name}_attention"] == pytest.approx(wanted)
