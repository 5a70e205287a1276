"""Copies between two roots of this machine, with the real programs and pipes."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import threading
import time
from pathlib import Path
from typing import Any, cast

import pytest

from midstream.errors import ConnectionLostError, Exit
from midstream.fleet.fleet import LocalHostConfig
from midstream.hosts.local_host import LocalHost, LocalProcess
from midstream.hosts.rpc.remote_call import start_program
from midstream.hosts.rpc.remote_program import Cancelled, reports
from midstream.transfer import copy_tree as copy_tree_module
from midstream.transfer.copy_history import copy_history
from midstream.transfer.copy_settings import CopySettings
from midstream.transfer.copy_tree import copy_tree
from midstream.transfer.early_stream import EarlyStream
from midstream.transfer.endpoint import Endpoint
from midstream.transfer.errors import TransferError
from midstream.transfer.progress import Meter
from midstream.transfer.report import HistoryReport, Progress
from midstream.transfer.send_files import send_files
from midstream.transfer.stream import Stream
from midstream.transfer.target_session import TargetSession
from midstream.transfer.tls_certificates import make_peers
from midstream.transfer.verify_tree import verify_objects
from midstream_core import records
from midstream_host.copy import tls_peer
from midstream_host.copy_items import HistoryObject
from midstream_host.object_files import INCOMING
from support.checkpoints.trees import (
    assert_same_tree,
    assert_unfinished,
    cell,
    files,
    random_contents,
    sha256,
    write_checkpoint,
    write_tree,
)


@pytest.fixture
def pair(tmp_path: Path) -> tuple[LocalHost, LocalHost]:
    one, two = (LocalHost(name, LocalHostConfig(root=str(tmp_path / name))) for name in ("one", "two"))
    return one, two


Pair = tuple[LocalHost, LocalHost]


def test_copied_checkpoint_is_identical_and_verified(pair: Pair, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "new" / "target"
    digest = write_checkpoint(source, random.Random(1))
    updates: list[Progress] = []
    report = copy_tree(Endpoint(pair[0], str(source)), Endpoint(pair[1], str(target)), progress=updates.append)
    assert_same_tree(target, source)
    assert (report.objects, report.objects_sent, report.bytes_sent) == (13, 13, report.bytes)
    assert (updates[0].bytes_done, updates[0].objects_done) == (0, 0)
    assert (updates[-1].bytes_done, updates[-1].objects_done) == (report.bytes, 13)
    assert [p.bytes_done for p in updates] == sorted(p.bytes_done for p in updates)
    verdict = verify_objects(pair[1], str(target))
    assert verdict.ok
    assert verdict.problems == ()
    assert (verdict.root_digest, verdict.root_digest_ok) == (digest, True)


def parts(target: Path) -> set[str]:
    """Return the remaining partial objects; empty directories do not count."""
    return {name for name in files(target) if name.startswith(INCOMING) and not name.endswith("/lock")}


def old_python() -> str:
    """Return the path of a Python 3.8; skips the test without one."""
    for path in (
        shutil.which("python3.8"),
        *map(str, Path("~/.pyenv/versions").expanduser().glob("3.8*/bin/python3.8")),
    ):
        if path and not subprocess.run([path, "-S", "-c", "pass"], capture_output=True).returncode:
            return path
    pytest.skip("no Python 3.8: pyenv install 3.8")


def test_remote_side_runs_on_python_3_8(pair: Pair, tmp_path: Path) -> None:
    python = old_python()
    for host in pair:
        host.remote_python = python
    write_tree(tmp_path / "source", random_contents(random.Random(6), [20_000_000, 1000, 0]))
    copy_tree(
        Endpoint(pair[0], str(tmp_path / "source")),
        Endpoint(pair[1], str(tmp_path / "target")),
        settings=CopySettings(streams=2),
    )
    assert_same_tree(tmp_path / "target", tmp_path / "source")
    ends = make_peers(pair[1], pair[0])
    process = start_program(pair[1], tls_peer.answer)(peer=ends.listener(None))
    dialer = ends.dialer(["127.0.0.1"], next(reports(process))["port"])
    assert pair[0].call(tls_peer.probe)(peer=dialer)["address"] == "127.0.0.1"
    process.close()


def test_objects_present_with_right_hash_are_not_sent(pair: Pair, tmp_path: Path) -> None:
    contents = random_contents(random.Random(2), [2000] * 40)
    source, target = tmp_path / "source", tmp_path / "target"
    write_tree(source, contents)
    names = list(contents)
    write_tree(target, {name: contents[name] for name in names[:10]})
    (target / records.MANIFEST).unlink()
    (target / names[3]).write_bytes(contents[names[3]][:-1] + b"?")  # same size, another byte
    (target / names[4]).write_bytes(b"partial")
    report = copy_tree(Endpoint(pair[0], str(source)), Endpoint(pair[1], str(target)))
    assert set(report.skipped) == set(names[:10]) - {names[3], names[4]}
    assert (report.objects_sent, report.bytes_sent) == (32, 32 * 2000)
    assert_same_tree(target, source)
    assert copy_tree(Endpoint(pair[0], str(source)), Endpoint(pair[1], str(target))).bytes_sent == 0


def test_corrupt_source_object_is_named_without_manifest(pair: Pair, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    write_checkpoint(source, random.Random(1))
    victim = source / "arrays/model/array1/c/2"
    content = bytearray(victim.read_bytes())
    content[100] ^= 4
    victim.write_bytes(content)
    with pytest.raises(
        TransferError, match=r"object arrays/model/array1/c/2 of one:.* is corrupt: SHA-256 is"
    ) as caught:
        copy_tree(Endpoint(pair[0], str(source)), Endpoint(pair[1], str(target)))
    assert caught.value.path == "arrays/model/array1/c/2"
    assert not (target / records.MANIFEST).exists()
    assert not (target / "arrays/model/array1/c/2").exists()
    assert parts(target) == set()


def test_missing_objects_are_named_before_writing(pair: Pair, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    write_tree(source, {cell("a"): b"1", cell("b"): b"2", cell("c"): b"3"})
    (source / cell("b")).unlink()
    (source / cell("c")).write_bytes(b"33")
    with pytest.raises(TransferError, match=r"object arrays/b/c/0 of one:.*: missing, and 1 more object "):
        copy_tree(Endpoint(pair[0], str(source)), Endpoint(pair[1], str(target)))
    assert not target.exists()


LEAVES = '{"objects": [{"path": "../x", "size": 1, "sha256": ""}]}'


@pytest.mark.parametrize(
    ("manifest", "message"),
    [(None, "not a complete tree"), ("{partial", "not a manifest"), (LEAVES, "leaves the directory")],
)
def test_source_without_manifest_is_refused_in_one_line(
    pair: Pair, tmp_path: Path, manifest: str | None, message: str
) -> None:
    (tmp_path / "source").mkdir()
    if manifest is not None:
        (tmp_path / "source" / records.MANIFEST).write_text(manifest)
    with pytest.raises(TransferError, match=message) as caught:
        copy_tree(Endpoint(pair[0], str(tmp_path / "source")), Endpoint(pair[1], str(tmp_path / "target")))
    assert "\n" not in str(caught.value)


def test_another_tree_is_not_overwritten(pair: Pair, tmp_path: Path) -> None:
    write_tree(tmp_path / "source", {cell("a"): b"1"})
    write_tree(tmp_path / "target", {cell("a"): b"2"})
    with pytest.raises(TransferError, match="has another tree"):
        copy_tree(Endpoint(pair[0], str(tmp_path / "source")), Endpoint(pair[1], str(tmp_path / "target")))
    assert (tmp_path / "target" / cell("a")).read_bytes() == b"2"


@pytest.mark.parametrize("history", [False, True])
def test_answer_to_commit_is_read_whenever_it_arrives(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, history: bool
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    write_checkpoint(source, random.Random(1))
    real = TargetSession.commit

    def commit(session: TargetSession) -> None:
        real(session)
        for thread in session._threads:
            if "read_reports" in thread.name:
                thread.join(60)  # the target has answered, and its program has ended

    monkeypatch.setattr(TargetSession, "commit", commit)
    ends = Endpoint(pair[0], str(source)), Endpoint(pair[1], str(target))
    cancel = threading.Event()
    late = threading.Timer(60, cancel.set)
    late.start()
    try:
        if history:
            entry: HistoryObject = {"path": "attempts/001/log-0.txt", "size": 2, "sha256": sha256(b"{}")}
            (source / "attempts/001").mkdir(parents=True)
            (source / entry["path"]).write_bytes(b"{}")
            send_files(*ends, [entry], Meter(2, 1), explain=TransferError, cancel=cancel)
            assert (target / entry["path"]).read_bytes() == b"{}"
        else:
            copy_tree(*ends, cancel=cancel)
            assert_same_tree(target, source)
    finally:
        late.cancel()


@pytest.mark.parametrize("in_survey", [False, True])
def test_stream_that_ended_during_the_survey_is_replaced(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_survey: bool
) -> None:
    """Its end is read while the target is surveyed, or when the objects are sent."""
    source, target = tmp_path / "source", tmp_path / "target"
    write_checkpoint(source, random.Random(1))
    ended: list[Stream] = []
    opened = EarlyStream._open

    def end(early: EarlyStream) -> None:
        stream = early._opened.result()
        assert stream is not None
        cast(LocalProcess, stream._receiver)._child.kill()
        stream._threads[-1].join(60)
        ended.append(stream)

    def open_and_end(early: EarlyStream) -> None:
        opened(early)
        end(early)

    real = EarlyStream.take

    def take(early: EarlyStream) -> Stream | None:
        if not ended:
            end(early)
        return real(early)

    def session(*positional: Any, **named: Any) -> TargetSession:
        while in_survey and not ended:
            time.sleep(0.01)
        return TargetSession(*positional, **named)

    monkeypatch.setattr(EarlyStream, "_open", open_and_end if in_survey else opened)
    monkeypatch.setattr(EarlyStream, "take", take)
    monkeypatch.setattr(copy_tree_module, "TargetSession", session)
    copy_tree(Endpoint(pair[0], str(source)), Endpoint(pair[1], str(target)))
    assert ended[0].ended
    assert_same_tree(target, source)


def test_killed_receiver_is_named(pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the sender, which goes on."""
    write_checkpoint(tmp_path / "source", random.Random(1))

    def kill(stream: Stream, *_: Any, **__: Any) -> None:
        cast(LocalProcess, stream._receiver)._child.kill()

    monkeypatch.setattr(Stream, "send_items", kill)
    monkeypatch.setattr("midstream.transfer.stream.SHUTDOWN_TIMEOUT", 60.0)
    with pytest.raises(ConnectionLostError, match=rf"for two:{tmp_path}/target was ended by signal 9"):
        copy_tree(Endpoint(pair[0], str(tmp_path / "source")), Endpoint(pair[1], str(tmp_path / "target")))


def test_cancelled_copy_has_complete_objects_and_resumes(pair: Pair, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    contents = random_contents(random.Random(3), [1_000_000] * 60)
    write_tree(source, contents)
    cancel = threading.Event()

    def progress(now: Progress) -> None:
        if now.bytes_done > now.bytes_total // 3:
            cancel.set()

    slow = CopySettings(bandwidth_limit=100e6)
    with pytest.raises(Cancelled) as caught:
        copy_tree(
            Endpoint(pair[0], str(source)),
            Endpoint(pair[1], str(target)),
            progress=progress,
            cancel=cancel,
            settings=slow,
        )
    assert caught.value.code == Exit.INTERRUPTED
    there = {name: content for name, content in files(target).items() if not name.startswith(INCOMING)}
    assert_unfinished(there, contents)
    report = copy_tree(Endpoint(pair[0], str(source)), Endpoint(pair[1], str(target)))
    assert set(report.skipped) == set(there)
    assert_same_tree(target, source)


def test_error_in_progress_callback_ends_the_copy(pair: Pair, tmp_path: Path) -> None:
    write_tree(tmp_path / "source", random_contents(random.Random(4), [500_000] * 20))

    class StopError(Exception):
        pass

    def progress(now: Progress) -> None:
        if now.bytes_done:
            raise StopError

    with pytest.raises(StopError):
        copy_tree(
            Endpoint(pair[0], str(tmp_path / "source")), Endpoint(pair[1], str(tmp_path / "target")), progress=progress
        )
    assert parts(tmp_path / "target") == set()


def test_verify_objects_reports_damage_and_extra_files(pair: Pair, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, random.Random(1))
    (tmp_path / "arrays/model/array0/c/1").write_bytes(b"short")
    (tmp_path / "stray").write_bytes(b"")
    verdict = verify_objects(pair[0], str(tmp_path))
    assert not verdict.ok
    assert verdict.problems[0] == ("arrays/model/array0/c/1", "5 bytes, the manifest says 5000")
    assert verdict.problems[1] == (
        "manifest.json",
        "its root digest cannot be recomputed: arrays/model/array0/c/1 is missing or corrupt",
    )
    assert verdict.extra == ("stray",)
    assert verdict.root_digest_ok is False
    with pytest.raises(TransferError, match="not a complete tree"):
        verify_objects(pair[0], str(tmp_path / "arrays/model"))


def write_history(root: str, attempts: dict[int, str]) -> records.RunPaths:
    paths = records.RunPaths(root, "run")
    lineage = records.Lineage("run")
    for number, metrics in attempts.items():
        attempt = paths.attempt(number)
        Path(attempt.dir).mkdir(parents=True, exist_ok=True)
        Path(attempt.metrics).write_text(metrics)
        Path(attempt.status()).write_text(json.dumps({"state": "stopped", "number": number}))
        Path(attempt.command_file).write_text("{}")
        Path(attempt.log()).write_text(f"log of {number}\n")
        lineage = lineage.with_entry(records.LineageEntry(number, 1, "one", 2, "cpu", 0))
    Path(paths.config).write_text("a: 1\n")
    lineage.write(paths.lineage)
    records.first_fence("one").write(paths.fence)
    return paths


def copy_run(pair: Pair) -> HistoryReport:
    config = Path(records.RunPaths(pair[0].root, "run").config)
    text = config.read_text() if config.exists() else None
    return copy_history(pair[0], pair[1], "run", source_root=pair[0].root, target_root=pair[1].root, config=text)


def test_history_is_copied_without_commands_and_fence(pair: Pair) -> None:
    ours = write_history(pair[0].root, {1: "x\n" * 50, 2: "y\n" * 50})
    report = copy_run(pair)
    theirs = records.RunPaths(pair[1].root, "run")
    expected = {
        name: content
        for name, content in files(Path(ours.dir)).items()
        if "command" not in name and "fence" not in name
    }
    expected["lineage.json"] = Path(theirs.lineage).read_bytes()
    assert_same_tree(Path(theirs.dir), {**expected, ".lock": b""})
    assert records.Lineage.read(theirs.lineage) == records.Lineage.read(ours.lineage)
    assert len(report.copied) == 7
    again = copy_run(pair)
    assert again.copied == ()


def test_longer_history_is_never_replaced_by_shorter(pair: Pair) -> None:
    ours = write_history(pair[0].root, {1: "x\n" * 50})
    copy_run(pair)
    theirs = records.RunPaths(pair[1].root, "run")
    Path(theirs.attempt(1).metrics).write_text("x\n" * 90)
    assert copy_run(pair).kept == ("attempts/001/metrics.jsonl",)
    assert Path(theirs.attempt(1).metrics).read_text() == "x\n" * 90
    Path(ours.attempt(1).metrics).write_text("x\n" * 120)
    assert copy_run(pair).copied == ("attempts/001/metrics.jsonl",)
    assert Path(theirs.attempt(1).metrics).read_text() == "x\n" * 120


def test_metrics_of_another_attempt_are_set_aside(pair: Pair) -> None:
    write_history(pair[0].root, {1: "x\n" * 50, 2: "good\n" * 3})
    theirs = write_history(pair[1].root, {2: "rolled back\n" * 9, 3: "z\n"})
    report = copy_run(pair)
    assert Path(theirs.attempt(2).metrics).read_text() == "good\n" * 3
    [(path, aside)] = report.set_aside
    assert path == "attempts/002/metrics.jsonl"
    assert Path(theirs.dir, aside).read_text() == "rolled back\n" * 9
    assert [entry.attempt for entry in records.Lineage.read(theirs.lineage).entries] == [1, 2, 3]


def test_tensorboard_files_are_copied_and_never_shortened(pair: Pair) -> None:
    """A longer file on the target is not replaced by a shorter one."""
    ours = write_history(pair[0].root, {1: "x\n"})
    name = "tblogs/run/events.out.tfevents.17.gpu.001"
    mine = Path(ours.dir, name)
    theirs = Path(records.RunPaths(pair[1].root, "run").dir, name)
    mine.parent.mkdir(parents=True)
    mine.write_bytes(b"event" * 9)
    Path(ours.checkpoint("step-1-a001")).mkdir(parents=True)
    Path(ours.checkpoint("step-1-a001"), mine.name).write_bytes(b"not the tracker's")
    assert name in copy_run(pair).copied
    assert theirs.read_bytes() == b"event" * 9
    mine.write_bytes(b"event" * 12)
    assert copy_run(pair).copied == (name,)
    mine.write_bytes(b"event" * 10)
    assert copy_run(pair).kept == (name,)
    assert theirs.read_bytes() == b"event" * 12
    assert not Path(records.RunPaths(pair[1].root, "run").checkpoints).exists()


def test_only_the_tail_of_a_long_log_is_copied(pair: Pair) -> None:
    ours = write_history(pair[0].root, {1: ""})
    Path(ours.attempt(1).log()).write_bytes(b"begin" + b"." * (3 << 20) + b"end")
    copy_run(pair)
    log = Path(records.RunPaths(pair[1].root, "run").attempt(1).log()).read_bytes()
    assert len(log) == 1 << 20
    assert log.endswith(b"..end")


def test_history_of_missing_run_is_refused(pair: Pair) -> None:
    with pytest.raises(TransferError, match="there is no such run"):
        copy_run(pair)
