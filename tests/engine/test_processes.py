"""An attempt of several processes: the same run as one process has, one outcome of everything, and nobody waits for the
dead."""

from __future__ import annotations

import re
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from midstream_engine import records
from midstream_engine.checkpoint.loading.list_checkpoints import read_manifest
from midstream_engine.checkpoint.loading.verify import verify_checkpoint
from midstream_engine.config.distributed import DistributedConfig
from midstream_engine.config.errors import ConfigError
from midstream_engine.errors import EngineError
from midstream_engine.processes.message_board import Lost, MessageBoard, join_message_board
from midstream_engine.processes.rendezvous import Processes
from midstream_engine.processes.shared_file_systems import find_shared_file_systems
from support.engine_processes import Together, free_port, rows
from support.engine_runs import Engine, held

# Far more steps than a test waits for: it ends each attempt itself, so no machine is too fast or too slow for it.
FLAGS = [
    "--trainer.num_train_steps", "5000", "--trainer.checkpointer.keep", "[{every: 10}]",
    "--trainer.steps_per_eval", "5", "--data.validation_urls", "stdlib:json/tool.py",
]  # fmt: skip
TRACKERS = "[{{type: tensorboard, logdir: {}}}, {{type: wandb, mode: offline, save_code: false}}]"


# Whoever comes first waits for three attempts: much on a machine that is busy with other things.
long = pytest.mark.timeout(1200)


def statuses(paths: records.RunPaths, attempt: int, count: int = 2) -> list[records.Status]:
    return [records.Status.read(paths.attempt(attempt).status(process)) for process in range(count)]


# ------------------------------------------------------------------------------------------------------- the board


def meet(count: int, timeout: float = 5.0) -> list[MessageBoard]:
    """The boards of ``count`` processes, all of which are threads here."""
    address, boards = f"127.0.0.1:{free_port()}", {}

    def join(process: int) -> None:
        boards[process], _ = join_message_board(
            address,
            process,
            count,
            host=f"host-{process}",
            token="t",
            joining=20,
            timeout=timeout,
            welcome=dict,
        )

    threads = [threading.Thread(target=join, args=(process,)) for process in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [boards[process] for process in range(count)]


def test_what_is_posted_arrives_once_in_order_and_where_it_was_sent():
    first, second, third = meet(3)
    first.post("x", b"1")
    first.post("x", b"2" * (3 << 20))
    third.post("y", b"for two", to=1)
    assert [board.take("x", 0) for board in (second, third)] == [b"1", b"1"]
    assert len(second.take("x", 0)) == 3 << 20
    assert second.take("y", 2) == b"for two"
    with pytest.raises(Lost, match=r"process 2 \(host-2, pid \d+\) keeps the others waiting for 0 s \(y\)"):
        first.take("y", 2, patience=0.2)
    for board in (third, second, first):
        board.close()


def test_a_process_that_goes_is_named_to_all_with_its_last_words():
    boards, told = meet(3), []
    boards[0].when_gone(told.append)
    boards[1].last_words("its disk is full")
    boards[1].close()
    with pytest.raises(Lost, match=r"^process 1 \(host-1, pid \d+\) is gone: its disk is full$"):
        boards[2].take("x", 1)
    assert boards[0].await_obituary(20) == boards[2].obituary()
    boards[0].close()
    with pytest.raises(Lost, match="process 1 "):  # the first that went is the one to name
        boards[2].exchange("x", b"")
    boards[2].close()
    assert len(told) == 1


def test_the_last_words_of_the_process_that_all_are_connected_to_arrive():
    boards = meet(3)
    boards[0].last_words("the loss is NaN")
    boards[0].close()
    for board in boards[1:]:
        assert re.fullmatch(r"process 0 \(host-0, pid \d+\) is gone: the loss is NaN", board.await_obituary(20))
        board.close()


def test_silence_is_given_up_after_the_timeout_and_all_are_not_there_is_said():
    boards = meet(2, timeout=0.6)
    boards[1]._leaving.set()  # it gives no signs of life any more
    assert re.search(r"process 1 .* it gave no sign of life for 1 s", boards[0].await_obituary(20))
    for board in boards:
        board.close()
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(
        EngineError, match=r"processes 1, 2 of 3 did not arrive within 1 s; look at what became of them"
    ):
        join_message_board(address, 0, 3, host="a", token="", joining=1, timeout=5, welcome=dict)
    with pytest.raises(EngineError, match=rf"process 1 of 3 cannot reach process 0 at {address} .*refused"):
        join_message_board(address, 1, 3, host="b", token="", joining=1, timeout=5, welcome=dict)


def test_who_belongs_to_another_attempt_is_turned_away():
    address = f"127.0.0.1:{free_port()}"
    said: list[str] = []

    def lead() -> None:
        try:
            join_message_board(address, 0, 2, host="a", token="r/2", joining=3, timeout=5, welcome=dict)
        except EngineError as error:
            said.append(str(error))

    thread = threading.Thread(target=lead)
    thread.start()
    with pytest.raises(EngineError, match=r"process 1 was turned away: it belongs to another attempt than the 'r/2'"):
        join_message_board(address, 1, 2, host="b", token="r/1", joining=20, timeout=5, welcome=dict)
    thread.join()
    assert "process 1 of 2 did not arrive" in said[0]


@pytest.mark.parametrize(("names", "spread"), [(["a", "a", "a"], False), (["a", "b", "b"], True)])
def test_whether_a_directory_is_shared_is_looked_at(tmp_path, names, spread):
    boards, found = meet(3), {}

    def look(process: int) -> None:
        directory = tmp_path / names[process]
        directory.mkdir(exist_ok=True)
        found[process] = find_shared_file_systems(boards[process], str(directory))

    threads = [threading.Thread(target=look, args=(process,)) for process in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[process].spread for process in range(3)] == [spread] * 3
    assert found[2].first == ((0, 1, 1) if spread else (0, 0, 0))
    assert found[2].hosts == (("host-0", "host-1", "host-1") if spread else ("host-0",) * 3)
    assert [list((tmp_path / name).iterdir()) for name in set(names)] == [[]] * len(set(names))
    for board in boards:
        board.close()


def test_the_place_of_a_process_comes_from_flags_or_environment():
    said = {"JAX_COORDINATOR_ADDRESS": "h:1", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1"}
    found = DistributedConfig().with_environment(said)
    assert (found.coordinator_address, found.num_processes, found.process_id) == ("h:1", 2, 1)
    assert DistributedConfig("x:2", 3, 0).with_environment(said).coordinator_address == "x:2"
    with pytest.raises(ConfigError, match="num_processes is missing"):
        DistributedConfig().with_environment({"JAX_COORDINATOR_ADDRESS": "h:1", "JAX_PROCESS_ID": "1"})
    with pytest.raises(ConfigError, match="is not HOST:PORT"):
        DistributedConfig("nowhere", 2, 0)


def test_no_process_enters_a_program_for_the_first_time_before_all_do():
    """What makes connections gives up on who comes late; one process may compile or restore for longer than that."""
    boards, entered = meet(2), []
    late = threading.Event()

    def run(process: int) -> None:
        mine = Processes(process, 2, board=boards[process]).consensus("step", lambda number: entered.append(number))
        if process == 1:
            assert late.wait(30)
        mine(process)
        mine(process)

    threads = [threading.Thread(target=run, args=(process,)) for process in range(2)]
    for thread in threads:
        thread.start()
    threads[0].join(0.3)  # as long as it likes: it must not get anywhere
    assert entered == []
    late.set()
    for thread in threads:
        thread.join(30)
    assert sorted(entered) == [0, 0, 1, 1]
    for board in boards:
        board.close()


# ------------------------------------------------------------------------------------------------------ whole attempts


def spliced(paths: records.RunPaths, attempts: int) -> list[dict[str, Any]]:
    """The run's curve: each step from the newest attempt that has it."""
    return list({row["global_step"]: row for n in range(1, attempts + 1) for row in rows(paths, n)}.values())


@pytest.fixture(scope="module")
def moved(tmp_path_factory) -> tuple[records.RunPaths, list[tuple[int, str]]]:
    """One run of three attempts: two processes on two devices each, one of which is killed; one process on four
    devices; two processes again, one of which is told to stop. And how the processes of the first attempt ended."""
    root = tmp_path_factory.mktemp("moved")
    cache: dict[str, Any] = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path_factory.mktemp("cache"))}
    with Together([root, root], *FLAGS, **cache) as both:
        both.until(both.has_saved(1), 600)
        both.until(both.has_trained(1, 14), 600)
        both.processes[1].kill()
        ended = both.finish(600)
    with Engine(root, *FLAGS, devices=4, **cache) as one:
        one.until(lambda: True if len(rows(one.paths, 2)) > 5 else None, 600)
        one.process.send_signal(signal.SIGTERM)
        code, log = one.finish()
        assert code == 0, log
    profile = ["--trainer.profiler", "true", "--trainer.profiler_start_step", "1", "--trainer.profiler_num_steps", "2"]
    with Together([root, root], *FLAGS, *profile, "--trainer.tracker", TRACKERS.format(root / "tb"), **cache) as both:
        first = records.Lineage.read(one.paths.lineage).entries[-1].last_step
        assert first is not None
        both.until(both.has_trained(3, first + 6), 600)
        both.processes[1].send_signal(signal.SIGTERM)
        for code, log in both.finish():
            assert code == 0, log
    return both.paths[0], ended


@pytest.fixture(scope="module")
def alone(moved, tmp_path_factory) -> records.RunPaths:
    """One process on four devices, as far as the moved run came, without a break."""
    root, steps = tmp_path_factory.mktemp("alone"), len(spliced(moved[0], 3))
    with Engine(root, *FLAGS, devices=4) as engine:
        engine.until(lambda: True if len(rows(engine.paths, 1)) >= steps else None, 600)
        engine.process.send_signal(signal.SIGTERM)
        code, log = engine.finish()
    assert code == 0, log
    return engine.paths


@long
def test_a_run_of_two_processes_then_one_then_two_is_the_run_of_one(alone, moved):
    paths, _ = moved
    ours, theirs = spliced(paths, 3), rows(alone, 1)
    assert [row["global_step"] for row in ours] == list(range(len(ours)))
    evaluated = 0
    for mine, reference in zip(ours, theirs, strict=False):
        assert mine["batch_digest"] == reference["batch_digest"]
        assert records.relative_difference(mine["train/loss"], reference["train/loss"]) <= 1e-5
        if "eval/loss" in reference:
            evaluated += 1
            assert records.relative_difference(mine["eval/loss"], reference["eval/loss"]) <= 1e-5
    assert evaluated == len(ours) // 5
    assert [entry.devices for entry in records.Lineage.read(paths.lineage).entries] == [4, 4, 4]


@long
def test_processes_stop_as_one_and_each_line_is_written_once(moved):
    paths, _ = moved
    first, ours = records.Lineage.read(paths.lineage).entries[-1].first_step, rows(paths, 3)
    assert [row["global_step"] for row in ours] == list(range(first, first + len(ours)))
    both, last = statuses(paths, 3), first + len(ours)
    assert [(one.state, one.step, one.process, one.processes) for one in both] == [
        ("stopped", last, process, 2) for process in range(2)
    ]
    assert {one.checkpoint for one in both} == {f"step-{last}-a003"}
    assert len({one.root_digest for one in both}) == 1
    assert "stopped at step" in Path(paths.attempt(3).log(1)).read_text()
    assert "coordinator_address: null" in Path(paths.config).read_text()


@long
def test_a_process_killed_in_training_is_named_and_costs_what_was_not_saved(moved):
    paths, ((code, log), (killed, _)) = moved
    assert (code, killed) == (1, -signal.SIGKILL), log
    assert re.search(
        r"process 1 \(host-[^)]*, pid \d+\) is gone", records.Status.read(paths.attempt(1).status(0)).message
    )
    went_on = records.Lineage.read(paths.lineage).entries[1].first_step
    assert went_on % 10 == 0
    assert 10 <= went_on <= len(rows(paths, 1))


@long
def test_each_process_reads_its_own_rows_and_the_digest_is_that_of_all(moved):
    """(That the digests are those of the whole batch, the comparison with the run of one process shows.)"""
    paths, _ = moved
    for process in range(2):
        assert "reads 4 of a batch's 8 examples" in Path(paths.attempt(3).log(process)).read_text()
    assert "examples" not in "".join(re.findall(r"reads .*", Path(paths.attempt(2).log(0)).read_text()))


@long
def test_trackers_and_profiler_are_the_first_processs_alone(moved):
    paths, _ = moved
    attempt = Path(paths.attempt(3).dir)
    (offline,) = (attempt / "wandb").glob("offline-run-*/*.wandb")
    held(offline, b"train/loss", b"eval/loss")
    (events,) = Path(paths.root, "tb").rglob("events.out.tfevents.*")
    assert b"eval/loss" in events.read_bytes()
    (trace,) = (attempt / "profiler" / "plugins" / "profile").iterdir()
    assert list(trace.glob("*.xplane.pb"))


@long
def test_what_two_processes_saved_is_whole_and_the_same_arrays_as_one_saves(alone, moved):
    """The states themselves differ in last bits: sums over processes are taken in another order than over devices."""
    paths, _ = moved
    theirs, ours = (read_manifest(one.checkpoint("step-10-a001")) for one in (alone, paths))
    assert [(one.name, one.shape, one.grid) for one in ours.array_entries] == [
        (one.name, one.shape, one.grid) for one in theirs.array_entries
    ]
    assert ours.hosts == []
    report = verify_checkpoint(paths.checkpoint("step-10-a001"), deep=True)
    assert (report.flaws, report.unlisted) == ([], [])


LATE = """
import sys, time
from midstream_engine.trainer.runtime import programs
from midstream_engine import train
compile_steps = programs.compile_steps
programs.compile_steps = lambda *arguments: (time.sleep(35), compile_steps(*arguments))[1]
sys.exit(train.main())
"""


@long
@pytest.mark.slow
def test_a_process_that_is_ready_half_a_minute_after_the_other_is_waited_for(tmp_path):
    """A host that is slow to start, or that has to compile what another found in its cache."""
    flags = ["--trainer.num_train_steps", "2"]
    with Together([tmp_path, tmp_path], *flags, programs=[["-m", "midstream_engine.train"], ["-c", LATE]]) as both:
        for code, log in both.finish(480):
            assert code == 0, log
    assert [row["global_step"] for row in rows(both.paths[0], 1)] == [0, 1]


@long
def test_a_loss_that_is_no_number_ends_all_processes_with_the_same_words(tmp_path):
    with Together([tmp_path, tmp_path], *FLAGS, "--optimizer.learning_rate", "1e30", "--optimizer.warmup", "0") as both:
        ended = both.finish(600)
    said = [re.search(r"the loss of step \d+ is (NaN|infinite)", log) for _, log in ended]
    assert [code for code, _ in ended] == [1, 1], ended
    assert said[0] is not None
    assert said[1] is not None
    assert said[0][0] == said[1][0]
    assert all(said[0][0] in one.message for one in statuses(both.paths[0], 1))
