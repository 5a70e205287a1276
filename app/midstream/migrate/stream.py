"""Copy a checkpoint while its source still writes it: the disk there and the link are busy at the same time.

Objects that are whole go ahead in lots, each a small tree of its own with a manifest of its own; while one lot is begun
or ended, another has the link. When the real manifest is there it decides: what it names and what was sent with another
hash, or not at all, is sent as the last lot.
"""

from __future__ import annotations

import threading
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

from midstream.errors import LostContact, MidstreamError
from midstream.migrate.move import Move
from midstream.migrate.shelf import same_bucket
from midstream.transfer import Progress, collect_objects, copy_objects, copy_tree
from midstream.transfer.settings import of_hosts
from midstream_engine import records

WORTHWHILE = 32 << 20  # bytes of a checkpoint below which sending ahead saves nothing
PATIENCE = 1.0  # seconds that one look waits for news
CALL = 300.0  # seconds: a look hashes some hundred megabytes
LOTS = 2  # under way at once
POLL = 0.2


class Streamed:
    """What was sent ahead: of which checkpoint, and path -> SHA-256 of the objects that the target has verified
    (``arrived``), or that are on their way, too (``sent``). To be closed: threads may be at it."""

    def __init__(self) -> None:
        self.name = ""
        self.arrived: dict[str, str] = {}
        self.lots = 0
        self._under_way: dict[Future[None], dict[str, str]] = {}
        self._progress: dict[int, Progress] = {}
        self._telling = threading.Lock()
        self._cancel = threading.Event()
        self._pool = ThreadPoolExecutor(LOTS + 1, "ahead")

    def __enter__(self) -> Streamed:
        return self

    def __exit__(self, *_: object) -> None:
        self._cancel.set()
        self._pool.shutdown()

    @property
    def sent(self) -> dict[str, str]:
        return {path: sha256 for lot in [self.arrived, *self._under_way.values()] for path, sha256 in lot.items()}

    @property
    def under_way(self) -> int:
        """Lots."""
        return len(self._under_way)

    @property
    def bytes_done(self) -> int:
        return sum(each.bytes_done for each in self._progress.values())

    def begin(self, name: str) -> None:
        """With another checkpoint, while nothing is under way."""
        self.name, self.arrived, self._progress = name, {}, {}

    def send(self, move: Move, manifest: str, objects: list[dict[str, Any]]) -> None:
        """Begin a lot: the tree that ``manifest`` describes beside the checkpoint's objects."""
        self.lots += 1
        number, first = self.lots, self.lots == 1
        here, there = move.source_paths.checkpoint(self.name), move.target_paths.checkpoint(self.name)
        report = move.progress("checkpoint" if move.journal.known("sealed") else "checkpoint, as it is saved")

        def tell(progress: Progress) -> None:
            with self._telling:
                self._progress[number] = progress
                report(_together(list(self._progress.values()), progress.object))

        def copy() -> None:
            # The first one takes over what a killed move left there.
            copy_objects(
                move.source, here, move.target, there,
                manifest_name=manifest, progress=tell, cancel=self._cancel, alone=first,
            )  # fmt: skip

        self._under_way[self._pool.submit(copy)] = {entry["path"]: entry["sha256"] for entry in objects}

    def collect(self, seconds: float = 0.0) -> list[MidstreamError]:
        """Take note of lots that have ended, after ``seconds`` at the latest; why those failed that did. LostContact,
        and what is no error of a copy, is raised."""
        done, _ = wait(self._under_way, seconds, FIRST_COMPLETED)
        failed: list[MidstreamError] = []
        for each in done:
            lot = self._under_way.pop(each)
            try:
                each.result()
            except LostContact:
                raise
            except MidstreamError as error:
                failed.append(error)
            else:
                self.arrived.update(lot)
        return failed

    def settle(self, move: Move) -> list[MidstreamError]:
        """Wait until nothing is under way: errors as of `collect`."""
        failed: list[MidstreamError] = []
        while self._under_way:
            move.check_requests()
            failed += self.collect(POLL)
        return failed


def _together(lots: list[Progress], newest: str) -> Progress:
    """All lots as one copy."""
    done, total = sum(lot.bytes_done for lot in lots), sum(lot.bytes_total for lot in lots)
    rate = sum(lot.bytes_per_second for lot in lots if lot.bytes_done < lot.bytes_total)
    eta = 0.0 if done >= total else (total - done) / rate if rate > 0 else None
    objects, of = sum(lot.objects_done for lot in lots), sum(lot.objects_total for lot in lots)
    return Progress(done, total, objects, of, newest, rate, eta)


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
    move: Move, attempt: int, serial: int, since: int, sizes: dict[str, int], streamed: Streamed
) -> Answer:
    """Wait for the answer of the source's ``attempt`` to order ``serial``, and meanwhile send each object of the
    checkpoint that it writes (from step ``since`` on) as soon as it is whole. ``sizes``: bytes of each object, by path,
    as an earlier checkpoint has them; empty where nothing is to be sent ahead.

    What could not be sent is left for later. LostContact where the source cannot be asked any more."""
    source = move.source
    if sum(sizes.values()) < WORTHWHILE:
        sizes = {}
    limited = of_hosts(source, move.target).rate_limit > 0  # it holds for one copy
    while True:
        move.check_requests()
        room = streamed.under_way < (1 if limited else LOTS)
        news = source.call(
            "growing.look",
            root=source.root,
            run_id=move.plan.run_id,
            attempt=attempt,
            serial=serial,
            since=since,
            sizes=sizes if room else {},
            sent=[streamed.name, *streamed.sent],
            lot=streamed.lots + 1,
            patience=PATIENCE if room else POLL,
            timeout=CALL,
        )
        if news["answered"]:
            status = news["status"]
            found = None if status is None else records.Status.from_json(status)
            return Answer(found, news["alive"], news["described"], news["mover"])
        failed = streamed.collect()
        if failed:  # nothing depends on it: the copy after the seal sends what is not there
            sizes = {}
            move.note(f"{failed[0]}; the rest is copied after the seal")
        elif news["objects"]:
            if news["name"] != streamed.name:
                streamed.settle(move)
                streamed.begin(news["name"])
                move.journal.fact(sent_ahead=news["name"])
            streamed.send(move, news["manifest"], news["objects"])


def complete(move: Move, name: str, streamed: Streamed) -> int:
    """After the seal: send what of the sealed checkpoint ``name`` was not sent yet, wait for the rest, and write the
    manifest last. Returns the bytes that arrived here. TransferError, LostContact: the same call goes on."""
    if streamed.name != name or not streamed.sent:
        brought = bring_checkpoint(move, name, "checkpoint")
        if move.journal.known("sent_ahead") == name:  # by a process that was killed
            for host, paths in ((move.target, move.target_paths), (move.source, move.source_paths)):
                host.call("growing.tidy", directory=paths.checkpoint(name))
        return brought  # nothing was asked of a source whose checkpoints lie in a bucket: it may be gone
    source, target = move.source, move.target
    here, there = move.source_paths.checkpoint(name), move.target_paths.checkpoint(name)
    move.command(source, f"copy the rest of {here} to {target.name}:{there}")
    before = streamed.bytes_done
    while True:
        rest = source.call(
            "growing.rest", directory=here, arrived=streamed.sent, lot=streamed.lots + 1, timeout=CALL
        )  # fmt: skip
        ahead = streamed.under_way
        if rest["objects"]:
            streamed.send(move, rest["manifest"], rest["objects"])
        failed = streamed.settle(move)
        if not failed:
            break
        if not ahead:  # it was this very lot
            raise failed[0]
    target.call("growing.commit", directory=there, text=rest["text"], timeout=CALL)
    source.call("growing.tidy", directory=here)
    move.target_side.hand_out_checkpoint(name, move.progress("checkpoint, to each host"))
    return streamed.bytes_done - before


def bring_checkpoint(move: Move, name: str, what: str) -> int:
    """Bring a checkpoint to the target's first host, from all hosts that hold a share of it, and from there to its
    others. The bytes that left the source: what lies there already is not sent again. Errors as of ``complete``."""
    source, target = move.source_side, move.target_side
    manifest = source.shelf.manifest(name)
    if same_bucket(source.shelf, target.shelf):
        move.note(f"{name} lies in {source.store}, which {target.target.name} reads itself: nothing is copied")
        return 0
    holders = [entry.host for entry in manifest.spread_hosts]
    here = source.shelf.place(name, target.first, target.python)
    # What lies in a bucket is brought whether or not its host still answers.
    beside = None if holders or source.store else source.first
    there = target.shelf.place(name, beside, source.python)
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
    move.target_side.hand_out_checkpoint(name, move.progress(f"{what}, to each host"))
    return sent
