"""Copy a checkpoint while its source still writes it: the disk there and the link are busy at the same time.

Each object goes over streams that are open already, as soon as it is whole. When the manifest is there it decides: what
it names and what was not sent goes after it, and where anything else came between, all of it is copied as any other
checkpoint is, of which what lies there already is not sent again.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from queue import Empty, Queue
from typing import Any

from midstream.errors import HostError, LostContact, MidstreamError
from midstream.hosts.host import Process
from midstream.hosts.rpc.remote_call import start_program
from midstream.hosts.rpc.remote_program import last_words, reports
from midstream.hosts.rpc.result_checks import report_of
from midstream.migrate.checkpoint_store import same_bucket
from midstream.migrate.execution.migration import Migration
from midstream.remote.copy.allowlist import CHECKPOINT, shown
from midstream.transfer import Endpoint, Feed, collect_objects, copy_tree
from midstream.transfer.tree_contents import contents_of
from midstream_engine import records

News = Callable[[float], "dict[str, Any] | None"]

WORTHWHILE = 32 << 20  # bytes of a checkpoint below which sending ahead saves nothing
WORTH_A_LOOK = 1 << 20  # bytes of an object
CALL = 300.0  # seconds
POLL = 0.1
ENDING = 10.0  # seconds that the program at the source may take to end


class Streamed:
    """What was sent ahead of the seal, of which checkpoint (``name``); ``held``: objects that were not, because the
    target has their bytes. To be closed: streams may be open."""

    def __init__(self) -> None:
        self.name, self.held = "", 0
        self.feed: Feed | None = None

    def __enter__(self) -> Streamed:
        return self

    def __exit__(self, *_: object) -> None:
        self.drop()

    @property
    def sent(self) -> dict[str, str]:
        """Of the checkpoint: path -> SHA-256."""
        sent = {} if self.feed is None else self.feed.sent
        return {path[len(self.name) + 1 :]: sha for path, sha in sent.items() if path.startswith(f"{self.name}/")}

    def open(self, move: Migration, sizes: dict[str, int]) -> None:
        """Open the streams, between the folders of all checkpoints: the name of this one is not known yet."""
        here, there = move.source_paths.checkpoints, move.target_paths.checkpoints
        progress = move.progress("checkpoint, as it is saved")
        move.journal.fact(sent_ahead=True)
        self.feed = Feed(
            Endpoint(move.source, here), Endpoint(move.target, there), sum(sizes.values()), len(sizes), progress
        )

    def begin(self, name: str, attempt: int, since: int) -> None:
        """It is this one's objects that come: a checkpoint of ``attempt`` from step ``since`` on. MidstreamError where
        the name says something else."""
        parsed = records.parse_checkpoint_name(name)
        if parsed is None or parsed[0] < since or parsed[1] != attempt:
            raise MidstreamError(
                f"the source says that attempt {attempt} saves {shown(name)}, and waits for a step from {since} on"
            )
        self.name, self.held = name, 0

    def add(self, objects: list[dict[str, Any]], *, last: bool = False) -> None:
        if self.feed is not None:
            self.feed.add([{**entry, "path": f"{self.name}/{entry['path']}"} for entry in objects], last=last)

    def drop(self) -> None:
        """What has arrived stays there."""
        feed, self.feed = self.feed, None
        if feed is not None:
            feed.close()


@dataclass(frozen=True)
class Answer:
    """How an attempt took an order."""

    status: records.Status | None
    alive: bool
    described: dict[str, Any] | None = None  # the run as it is then, where that was told with it
    mover: dict[str, Any] | None = None

    @property
    def state(self) -> str:
        """The status' state; ``lost`` where it claims to run and no such process does."""
        if self.status is None:
            return "lost"
        return self.status.state if self.alive or self.status.state in records.ENDED else "lost"


def stream_until_answered(
    move: Migration, attempt: int, serial: int, since: int, earlier: records.Manifest | None, streamed: Streamed
) -> Answer:
    """Wait for the answer of the source's ``attempt`` to order ``serial``, and meanwhile send each object of the
    checkpoint that it writes (from step ``since`` on) as soon as it is whole. ``earlier``: a checkpoint of the run that
    the target has, which tells of each object how large it is; None where nothing is to be sent ahead.

    What could not be sent is left for later. LostContact where the source cannot be asked any more."""
    sizes = {} if earlier is None else {entry.path: entry.size for entry in earlier.object_entries}
    held = set() if earlier is None else _held(earlier)
    if sum(sizes.values()) < WORTHWHILE:
        sizes = {}
    if sizes:
        streamed.open(move, sizes)
    with _following(move, attempt, serial, since, sizes) as news:
        while True:
            move.check_requests()
            report = news(POLL)
            if report is None:
                continue
            if report["event"] == "answered":
                status = report["status"]
                found = None if status is None else records.Status.from_json(status)
                return Answer(found, report["running"], report["described"], report["migration_lock"])
            if report["event"] == "named":
                streamed.begin(report["name"], attempt, since)
            elif report["event"] == "whole" and report["name"] == streamed.name:
                for entry in report["objects"]:
                    if sizes.get(entry["path"]) != entry["size"]:
                        raise MidstreamError(
                            f"{move.source.name} names an object of {streamed.name} that nobody asked for: "
                            f"{shown(entry['path'])}, {entry['size']} bytes",
                            f"look at what answers on {move.source.name}",
                        )
                objects = [entry for entry in report["objects"] if entry["sha256"] not in held]
                streamed.held += len(report["objects"]) - len(objects)
                streamed.add(objects)


def _held(earlier: records.Manifest) -> set[str]:
    """Hashes of what is worth looking for at the target before it is sent once more: weights that are not trained."""
    return {entry.sha256 for entry in earlier.object_entries if entry.size >= WORTH_A_LOOK}


@contextlib.contextmanager
def _following(move: Migration, attempt: int, serial: int, since: int, sizes: dict[str, int]) -> Iterator[News]:
    """``news(seconds)``: the next line of `midstream.remote.copy.growing_checkpoint.follow` on the source, or None.
    LostContact,
    HostError where it ended before its last one."""
    source = move.source
    arguments = {
        "root": source.root, "run_id": move.plan.run_id, "attempt": attempt, "serial": serial, "since": since,
        "sizes": sizes,
    }  # fmt: skip
    process = start_program(source, "copy.growing_checkpoint.follow", arguments)
    lines: Queue[dict[str, Any] | Exception] = Queue()

    def listen() -> None:
        try:
            for report in reports(process, "copy.growing_checkpoint.follow"):
                lines.put(report_of(source.name, "copy.growing_checkpoint.follow", report))
            lines.put(_why(move, process))
        except Exception as error:  # noqa: BLE001  raised where the lines are read
            lines.put(error)

    def news(seconds: float) -> dict[str, Any] | None:
        with contextlib.suppress(Empty):
            line = lines.get(timeout=seconds)
            if isinstance(line, (OSError, ValueError)):
                raise LostContact(f"{source.name}: the connection is gone") from line
            if isinstance(line, Exception):
                raise line
            return line
        return None

    thread = threading.Thread(target=listen, name="following", daemon=True)
    thread.start()
    try:
        yield news
    finally:
        process.close()
        thread.join(ENDING)


def _why(move: Migration, process: Process) -> HostError:
    """What ended the program at the source before its last word."""
    process.wait(ENDING)  # LostContact
    return HostError(f"{move.source.name}: whoever follows the save there has ended: {last_words(process)}")


def complete(move: Migration, name: str, streamed: Streamed) -> int:
    """After the seal: send what of the sealed checkpoint ``name`` was not sent yet, wait for the rest, and write the
    manifest last. Returns the bytes that arrived here. TransferError, LostContact: the same call goes on."""
    feed, sent = streamed.feed, streamed.sent if streamed.name == name else {}
    if feed is None or not sent:
        return _bring_anew(move, name, streamed)
    source, target = move.source, move.target
    here, there = move.source_paths.checkpoint(name), move.target_paths.checkpoint(name)
    move.command(source, f"copy the rest of {here} to {target.name}:{there}")
    before = feed.bytes_sent
    try:
        text, missing = _rest(move, here, sent)
        if any(entry["path"] in sent for entry in missing):
            raise MidstreamError(f"{name} was written anew while it was sent")
        if streamed.held:
            raise MidstreamError(f"{target.name} has {streamed.held} of the objects in another checkpoint")
        streamed.add(missing, last=True)
        while not feed.wait(POLL):
            move.check_requests()
    except LostContact:
        raise
    except MidstreamError as error:
        move.note(f"{error}; what is not there yet is copied now")
        return _bring_anew(move, name, streamed) + feed.bytes_sent - before
    target.call("copy.growing_checkpoint.commit", directory=there, text=text, timeout=CALL)
    move.target_group.hand_out_checkpoint(name, move.progress("checkpoint, to each host"))
    return feed.bytes_sent - before


def _rest(move: Migration, directory: str, sent: Mapping[str, str]) -> tuple[str, list[dict[str, Any]]]:
    """The text of a complete checkpoint's manifest, and the objects in it whose hash is not the one in ``sent``. The
    list is made here: what the source says beside the manifest counts for nothing. TransferError."""
    text = move.source.call("copy.growing_checkpoint.rest", directory=directory, sent=dict(sent), timeout=CALL)["text"]
    objects = contents_of(Endpoint(move.source, directory), text, records.MANIFEST, CHECKPOINT).objects
    return text, [entry for entry in objects if sent.get(entry["path"]) != entry["sha256"]]


def _bring_anew(move: Migration, name: str, streamed: Streamed) -> int:
    """As any other checkpoint; what sending ahead had on its way goes, also where its process was killed."""
    streamed.drop()
    brought = bring_checkpoint(move, name, "checkpoint")
    if move.journal.known("sent_ahead"):
        move.target.call("copy.growing_checkpoint.tidy", directory=move.target_paths.checkpoints)
    return brought


def bring_checkpoint(move: Migration, name: str, what: str) -> int:
    """Bring a checkpoint to the target's first host, from all hosts that hold a share of it, and from there to its
    others. The bytes that left the source: what lies there already is not sent again. Errors as of ``complete``."""
    source, target = move.source_group, move.target_group
    manifest = source.checkpoint_store.manifest(name)
    if same_bucket(source.checkpoint_store, target.checkpoint_store):
        move.note(f"{name} lies in {source.store}, which {target.target.name} reads itself: nothing is copied")
        return 0
    holders = [entry.host for entry in manifest.spread_hosts]
    here = source.checkpoint_store.endpoint(name, target.first, target.python)
    # What lies in a bucket is brought whether or not its host still answers.
    beside = None if holders or source.store else source.first
    there = target.checkpoint_store.endpoint(name, beside, source.python)
    progress = move.progress(what)
    if holders:
        known = {host: move.hosts.get(host) for host in holders if host in move.fleet.hosts}
        move.command(source.first, f"collect {here.directory} from {', '.join(holders)} to {there}")
        sent = collect_objects(
            known, here.host, here.directory, there.host, there.directory, progress=progress
        ).bytes_sent
    else:
        move.command(target.first if here.in_bucket else source.first, f"copy {here.directory} to {there}")
        copied = copy_tree(here, there, progress=progress)
        sent = copied.bytes_sent
        if here.in_bucket or there.in_bucket:
            move.note("; ".join(copied.routes))
    move.target_group.hand_out_checkpoint(name, move.progress(f"{what}, to each host"))
    return sent
