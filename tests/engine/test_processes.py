"""An attempt of several processes: the same run as one process has, one outcome of everything, and nobody waits for the
dead."""

from __future__ import annotations

import os
import re
import signal
import threading
from pathlib import Path

import pytest

from engine_processes import Together, free_port, rows
from engine_runs import Engine
from midstream_engine import records
from midstream_engine.checkpoint.discover import read_manifest
from midstream_engine.checkpoint.verify import verify_checkpoint
from midstream_engine.config.distributed import DistributedConfig
from midstream_engine.config.errors import ConfigError
from midstream_engine.errors import EngineError
from midstream_engine.processes.board import Board, Lost, join_board
from midstream_engine.processes.places import find_places

KEEP = ["--trainer.checkpointer.keep", "[{every: 10}]"]
STEPS = ["--trainer.num_train_steps"]


def statuses(paths: records.RunPaths, attempt: int, count: int = 2) -> list[records.Status]:
    return [records.Status.read(paths.attempt(attempt).status(process)) for process in range(count)]


# ------------------------------------------------------------------------------------------------------- the board


def meet(count: int, timeout: float = 5.0) -> list[Board]:
    """The boards of ``count`` processes, all of which are threads here."""
    address, boards = f"127.0.0.1:{free_port()}", {}

    def join(process: int) -> None:
        boards[process], _ = join_board(
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
        join_board(address, 0, 3, host="a", token="", joining=1, timeout=5, welcome=dict)
    with pytest.raises(EngineError, match=rf"process 1 of 3 cannot reach process 0 at {address} .*refused"):
        join_board(address, 1, 3, host="b", token="", joining=1, timeout=5, welcome=dict)


def test_who_belongs_to_another_attempt_is_turned_away():
    address = f"127.0.0.1:{free_port()}"
    said: list[str] = []

    def lead() -> None:
        try:
            join_board(address, 0, 2, host="a", token="r/2", joining=3, timeout=5, welcome=dict)
        except EngineError as error:
            said.append(str(error))

    thread = threading.Thread(target=lead)
    thread.start()
    with pytest.raises(EngineError, match=r"process 1 was turned away: it belongs to another attempt than the 'r/2'"):
        join_board(address, 1, 2, host="b", token="r/1", joining=20, timeout=5, welcome=dict)
    thread.join()
    assert "process 1 of 2 did not arrive" in said[0]


@pytest.mark.parametrize(("names", "spread"), [(["a", "a", "a"], False), (["a", "b", "b"], True)])
def test_whether_a_directory_is_shared_is_looked_at(tmp_path, names, spread):
    boards, found = meet(3), {}

    def look(process: int) -> None:
        directory = tmp_path / names[process]
        directory.mkdir(exist_ok=True)
        found[process] = find_places(boards[process], str(directory))

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


# ------------------------------------------------------------------------------------------------------ whole attempts


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> records.RunPaths:
    """One process on four devices: 30 updates without a break."""
    root = tmp_path_factory.mktemp("alone")
    with Engine(root, *STEPS, "30", *KEEP, devices=4) as engine:
        code, log = engine.finish(240)
    assert code == 0, log
    return engine.paths


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> records.RunPaths:
    """The same by two processes on two devices each, one of which is told to stop after the first save."""
    root = tmp_path_factory.mktemp("together")
    with Together([root, root], *STEPS, "30", *KEEP, "--trainer.tracker", "[{type: tensorboard}]") as both:
        both.until(both.has_saved(1))
        os.kill(both.processes[1].pid, signal.SIGTERM)
        for code, log in both.finish():
            assert code == 0, log
    return both.paths[0]


def test_two_processes_train_the_same_run_as_one_and_stop_as_one(alone, trained):
    ours, theirs = rows(trained, 1), rows(alone, 1)
    assert [row["global_step"] for row in ours] == list(range(len(ours)))  # each line once: one writes
    assert len(ours) >= 10
    for mine, reference in zip(ours, theirs, strict=False):
        assert mine["batch_digest"] == reference["batch_digest"]
        assert records.relative_difference(mine["train/loss"], reference["train/loss"]) <= 1e-6
    both = statuses(trained, 1)
    assert [(one.state, one.step, one.process, one.processes) for one in both] == [
        ("stopped", len(ours), process, 2) for process in range(2)
    ]
    assert {one.checkpoint for one in both} == {f"step-{len(ours)}-a001"}
    assert len({one.root_digest for one in both}) == 1
    assert "stopped at step" in Path(trained.attempt(1).log(1)).read_text()
    (entry,) = records.Lineage.read(trained.lineage).entries
    assert (entry.devices, entry.last_step) == (4, len(ours))
    resolved = Path(trained.config).read_text()
    assert "coordinator_address: null" in resolved


def test_what_two_processes_saved_is_whole_and_the_same_arrays_as_one_saves(alone, trained):
    """The states themselves differ in last bits: sums over processes are taken in another order than over devices."""
    theirs, ours = (read_manifest(paths.checkpoint("step-10-a001")) for paths in (alone, trained))
    assert [(one.name, one.shape, one.grid) for one in ours.array_entries] == [
        (one.name, one.shape, one.grid) for one in theirs.array_entries
    ]
    assert ours.hosts == []
    report = verify_checkpoint(trained.checkpoint("step-10-a001"), deep=True)
    assert (report.flaws, report.unlisted) == ([], [])
