"""Copy of a checkpoint while its source writes it.

Disk and link work at the same time.

Each object is sent over open streams as soon as it is complete. The manifest, written last, decides: objects that it
names and that were not sent are sent then. After any mismatch the checkpoint is copied like any other, without the
objects that the target has.
"""

from __future__ import annotations

import contextlib
import shlex
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from queue import Empty, Queue

from midstream.errors import ConnectionLostError, HostError, MidstreamError
from midstream.hosts.host import Process
from midstream.hosts.rpc.remote_call import start_program
from midstream.hosts.rpc.remote_program import last_words, reports
from midstream.hosts.rpc.report_types import FOLLOW, Complete, Named
from midstream.hosts.rpc.result_checks import name_of, report_of
from midstream.migrate.checkpoint_store import same_store
from midstream.migrate.journal.facts import Facts
from midstream.migrate.steps.migration import Migration
from midstream.transfer.copy_tree import copy_tree
from midstream.transfer.endpoint import Endpoint
from midstream.transfer.incremental_copy import IncrementalCopy
from midstream.transfer.multi_host_copy import collect_objects
from midstream.transfer.tree_contents import contents_of
from midstream_core import records
from midstream_host.allowlist import CHECKPOINT, shown
from midstream_host.copy import growing_checkpoint
from midstream_host.copy_items import CopyObject
from midstream_host.runs import standby_state
from midstream_host.runs.run_state import RunDescription

Following = Named | Complete | growing_checkpoint.Answered
NextReport = Callable[[float], Following | None]

MIN_STREAMED_BYTES = 32 << 20  # of a checkpoint; below this, streaming saves no time
MIN_REUSED_BYTES = 1 << 20  # of an object; smaller ones are sent without a search on the target
CALL_TIMEOUT = 300.0  # seconds
POLL_INTERVAL = 0.1
SHUTDOWN_TIMEOUT = 10.0  # seconds for the program on the source to exit


class StreamedCopy:
    """Objects of checkpoint ``name`` that were sent before the seal.

    ``held`` counts objects that were not sent because the target has their bytes. Close it: streams may be open.
    """

    def __init__(self) -> None:
        self.name, self.reusable = "", 0
        self.feed: IncrementalCopy | None = None

    def __enter__(self) -> StreamedCopy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def sent(self) -> dict[str, str]:
        """SHA-256 of each sent object of the checkpoint, by path."""
        sent = {} if self.feed is None else self.feed.sent
        return {path[len(self.name) + 1 :]: sha for path, sha in sent.items() if path.startswith(f"{self.name}/")}

    def open(self, migration: Migration, sizes: dict[str, int]) -> None:
        """Open streams between the checkpoint directories; the checkpoint has no name yet."""
        here, there = migration.source_paths.checkpoints, migration.target_paths.checkpoints
        migration.prepared_calls.prepare(migration.source, growing_checkpoint.rest)
        migration.prepared_calls.prepare(migration.target, growing_checkpoint.commit)
        migration.prepared_calls.prepare(migration.target, standby_state.take_over)
        progress = migration.progress("checkpoint, as it is saved")
        migration.journal.record(Facts(sent_ahead=True))
        self.feed = IncrementalCopy(
            Endpoint(migration.source, here),
            Endpoint(migration.target, there),
            sum(sizes.values()),
            len(sizes),
            progress,
        )

    def begin(self, name: str, attempt: int, since: int) -> None:
        """Set the checkpoint whose objects follow: of ``attempt``, from step ``since`` on.

        Raises:
            MidstreamError: the name has another attempt or an earlier step.
        """
        parsed = records.parse_checkpoint_name(name)
        if parsed is None or parsed[0] < since or parsed[1] != attempt:
            raise MidstreamError(
                f"the source reports that attempt {attempt} saves {shown(name)}; expected is a step from {since} on"
            )
        self.name, self.reusable = name, 0

    def add(self, objects: Sequence[CopyObject], *, last: bool = False) -> None:
        if self.feed is not None:
            self.feed.add([{**entry, "path": f"{self.name}/{entry['path']}"} for entry in objects], last=last)

    def close(self) -> None:
        """Close the streams. Objects that have arrived stay on the target."""
        feed, self.feed = self.feed, None
        if feed is not None:
            feed.close()


@dataclass(frozen=True)
class Answer:
    """An attempt's answer to a command."""

    status: records.Status | None
    running: bool
    described: RunDescription | None = None  # the run at that time, if the answer has it
    migration_lock: records.MigrationLock | None = None

    @property
    def state(self) -> str:
        """The status' state; ``lost`` if it claims to run and no such process exists."""
        if self.status is None:
            return "lost"
        return self.status.state if self.running or self.status.state in records.ENDED else "lost"


def stream_until_answered(
    migration: Migration,
    attempt: int,
    sequence: int,
    since: int,
    earlier: records.Manifest | None,
    streamed: StreamedCopy,
) -> Answer:
    """Wait for a stop command's answer, and stream the checkpoint saved for it.

    Each object is sent as soon as it is complete. Objects that could not be sent are left to `complete`.

    Args:
        migration: the migration.
        attempt: the source's attempt.
        sequence: the command's.
        since: the first step that the checkpoint may have.
        earlier: a checkpoint of the run that the target has, for the objects' sizes; None to stream nothing.
        streamed: receives the objects that were sent.

    Raises:
        ConnectionLostError: the source is unreachable.
        MidstreamError: the source reports an object that ``earlier`` does not have.
    """
    sizes = {} if earlier is None else {entry.path: entry.size for entry in earlier.object_entries}
    reusable = _reusable_hashes(earlier) if earlier is not None else frozenset[str]()
    if sum(sizes.values()) < MIN_STREAMED_BYTES:
        sizes = {}
    if sizes:
        streamed.open(migration, sizes)
    with _following_save(migration, attempt, sequence, since, sizes) as next_report:
        while True:
            migration.check_requests()
            report = next_report(POLL_INTERVAL)
            if report is None:
                continue
            if isinstance(report, growing_checkpoint.Answered):
                return Answer(report.status, report.running, report.described, report.migration_lock)
            if isinstance(report, Named):
                streamed.begin(report.name, attempt, since)
            elif report.name == streamed.name:
                for entry in report.objects:
                    if sizes.get(entry.path) != entry.size:
                        raise MidstreamError(
                            f"{migration.source.name} reports an object of {streamed.name} that was not requested: "
                            f"{shown(entry.path)}, {entry.size} bytes",
                            f"check which program answers on {migration.source.name}",
                        )
                objects: list[CopyObject] = [
                    {"path": entry.path, "size": entry.size, "sha256": entry.sha256}
                    for entry in report.objects
                    if entry.sha256 not in reusable
                ]
                streamed.reusable += len(report.objects) - len(objects)
                streamed.add(objects)


def _reusable_hashes(earlier: records.Manifest) -> frozenset[str]:
    """Return hashes of large objects that the target may have, such as frozen weights."""
    return frozenset(entry.sha256 for entry in earlier.object_entries if entry.size >= MIN_REUSED_BYTES)


@contextlib.contextmanager
def _following_save(
    migration: Migration, attempt: int, sequence: int, since: int, sizes: dict[str, int]
) -> Generator[NextReport, None, None]:
    """Run `midstream_host.copy.growing_checkpoint.follow` on the source.

    Yields ``next_report(seconds)``, which returns the next line, or None after that time. ``next_report`` raises
    ConnectionLostError if the connection is lost, and HostError if the program exited before its last line.
    """
    source = migration.source
    process = start_program(source, FOLLOW.program)(
        root=source.root, run_id=migration.plan.run_id, attempt=attempt, sequence=sequence, since=since, sizes=sizes
    )
    lines: Queue[Following | Exception] = Queue()

    def listen() -> None:
        try:
            for line in reports(process, name_of(FOLLOW.program)):
                lines.put(report_of(source.name, FOLLOW, line))
            lines.put(_ended_early(migration, process))
        except Exception as error:  # noqa: BLE001  raised where the lines are read
            lines.put(error)

    def next_report(seconds: float) -> Following | None:
        with contextlib.suppress(Empty):
            line = lines.get(timeout=seconds)
            if isinstance(line, (OSError, ValueError)):
                raise ConnectionLostError(f"{source.name}: the connection is lost") from line
            if isinstance(line, Exception):
                raise line
            return line
        return None

    thread = threading.Thread(target=listen, name="following", daemon=True)
    thread.start()
    try:
        yield next_report
    finally:
        process.close()
        thread.join(SHUTDOWN_TIMEOUT)


def _ended_early(migration: Migration, process: Process) -> HostError:
    """Return the error of a program on the source that exited before its last line."""
    process.wait(SHUTDOWN_TIMEOUT)  # ConnectionLostError
    return HostError(f"{migration.source.name}: the program that follows the save has exited: {last_words(process)}")


def complete(migration: Migration, name: str, streamed: StreamedCopy) -> int:
    """Send the sealed checkpoint's objects that were not sent; write its manifest.

    Returns the bytes that were sent by this call. After TransferError or ConnectionLostError the same call continues.
    """
    feed, sent = streamed.feed, streamed.sent if streamed.name == name else {}
    if feed is None or not sent:
        return _copy_again(migration, name, streamed)
    source, target = migration.source, migration.target
    here, there = migration.source_paths.checkpoint(name), migration.target_paths.checkpoint(name)
    migration.log_command(
        target, f"copy the rest of {source.name}:{here} to {there}", shows=f"ls -l {shlex.quote(there)}"
    )
    before = feed.bytes_sent
    try:
        text, missing = _rest(migration, here, sent)
        if any(entry["path"] in sent for entry in missing):
            raise MidstreamError(f"{name} was rewritten while it was sent")
        if streamed.reusable:
            raise MidstreamError(f"{target.name} has {streamed.reusable} of the objects in another checkpoint")
        streamed.add(missing, last=True)
        while not feed.wait(POLL_INTERVAL):
            migration.check_requests()
    except ConnectionLostError:
        raise
    except MidstreamError as error:
        migration.note(f"{error}; the missing objects are copied now")
        return _copy_again(migration, name, streamed) + feed.bytes_sent - before
    commit = migration.prepared_calls.call(target, growing_checkpoint.commit, timeout=CALL_TIMEOUT)
    commit(directory=there, text=text)
    migration.target_group.distribute_checkpoint(name, migration.progress("checkpoint, to other hosts"))
    return feed.bytes_sent - before


def _rest(migration: Migration, directory: str, sent: Mapping[str, str]) -> tuple[str, list[CopyObject]]:
    """Return a complete checkpoint's manifest, and objects of hashes not in ``sent``.

    The list is computed here, from the manifest alone: other statements of the source are not trusted.

    Raises:
        TransferError: the manifest is not acceptable.
    """
    rest = migration.prepared_calls.call(migration.source, growing_checkpoint.rest, timeout=CALL_TIMEOUT)
    text = rest(directory=directory, sent=dict(sent)).text
    objects = contents_of(Endpoint(migration.source, directory), text, records.MANIFEST, CHECKPOINT).objects
    return text, [entry for entry in objects if sent.get(entry["path"]) != entry["sha256"]]


def _copy_again(migration: Migration, name: str, streamed: StreamedCopy) -> int:
    """Copy the checkpoint like any other; remove the stream's partial objects."""
    streamed.close()
    sent = copy_checkpoint(migration, name, "checkpoint")
    if migration.journal.facts.sent_ahead:
        migration.target.call(growing_checkpoint.tidy)(directory=migration.target_paths.checkpoints)
    return sent


def prepare_copy(migration: Migration) -> None:
    """Find the machine that has a bucket's client; start what it needs there.

    The downtime then has none of it.
    """
    source, target = migration.source_group.checkpoint_store, migration.target_group.checkpoint_store
    if (source.store or target.store) and not same_store(source, target):
        for end in _ends(migration, migration.plan.checkpoint, spread=False):
            end.prepare()


def _ends(migration: Migration, name: str, *, spread: bool) -> tuple[Endpoint, Endpoint]:
    """Return the endpoints of a checkpoint.

    ``spread``: several hosts have a share of it.
    """
    source, target = migration.source_group, migration.target_group
    # Between two buckets the bytes stream through this machine.
    here = source.checkpoint_store.endpoint(name, None if target.store else target.bucket_client_host, target.python)
    # A copy from a bucket does not need the source host, which may be unreachable.
    via = None if spread or source.store else source.bucket_client_host
    return here, target.checkpoint_store.endpoint(name, via, source.python)


def copy_checkpoint(migration: Migration, name: str, what: str) -> int:
    """Copy a checkpoint to the target's first host, and from there to its others.

    The checkpoint is collected from all hosts that have a share of it. Objects that the target has are not sent.
    Returns the bytes that left the source. Errors as of `complete`.
    """
    source, target = migration.source_group, migration.target_group
    manifest = source.checkpoint_store.manifest(name)
    if same_store(source.checkpoint_store, target.checkpoint_store):
        where = source.store or f"{source.first.name}:{source.first.root}"
        migration.note(f"{name} is in {where}, which {target.target.name} reads itself: nothing is copied")
        return 0
    share_hosts = [entry.host for entry in manifest.spread_hosts]
    here, there = _ends(migration, name, spread=bool(share_hosts))
    progress = migration.progress(what)
    listing = "" if there.in_bucket else f"ls -l {shlex.quote(there.directory)}"
    if share_hosts:
        reachable = {host: migration.hosts.get(host) for host in share_hosts if host in migration.fleet.hosts}
        migration.log_command(
            target.first, f"collect {here.directory} from {', '.join(share_hosts)} to {there}", shows=listing
        )
        sent = collect_objects(
            reachable, Endpoint(here.host, here.directory), Endpoint(there.host, there.directory), progress=progress
        ).bytes_sent
    else:
        migration.log_command(target.first, f"copy {here} to {there}", shows=listing)
        copied = copy_tree(here, there, progress=progress)
        sent = copied.bytes_sent
        if here.in_bucket or there.in_bucket:
            migration.note("; ".join(copied.routes))
    migration.target_group.distribute_checkpoint(name, migration.progress(f"{what}, to other hosts"))
    return sent
