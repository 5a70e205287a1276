"""Copy a checkpoint while its source still writes it: the disk there and the link are busy at the same time.

Objects that are whole go ahead in lots, each a small tree of its own with a manifest of its own. When the real manifest
is there it decides: what it names and what has arrived with another hash, or not at all, is sent as the last lot.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from midstream.errors import LostContact, MidstreamError
from midstream.migrate.move import Move
from midstream.migrate.shelf import same_bucket
from midstream.transfer import collect_objects, copy_objects, copy_tree
from midstream_engine import records

WORTHWHILE = 32 << 20  # bytes of a checkpoint below which sending ahead saves nothing
PATIENCE = 1.0  # seconds that one look waits for news
CALL = 300.0  # seconds: a look hashes some hundred megabytes


@dataclass
class Streamed:
    """What was sent ahead: of which checkpoint, and path -> SHA-256 of the objects that the target has verified."""

    name: str = ""
    arrived: dict[str, str] = field(default_factory=dict)
    lots: int = 0


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
    while True:
        move.check_requests()
        news = source.call(
            "growing.look",
            root=source.root,
            run_id=move.plan.run_id,
            attempt=attempt,
            serial=serial,
            since=since,
            sizes=sizes,
            sent=[streamed.name, *streamed.arrived],
            lot=streamed.lots + 1,
            patience=PATIENCE,
            timeout=CALL,
        )
        if news["answered"]:
            status = news["status"]
            found = None if status is None else records.Status.from_json(status)
            return Answer(found, news["alive"], news["described"], news["mover"])
        if news["objects"]:
            if news["name"] != streamed.name:
                streamed.name, streamed.arrived = news["name"], {}
            try:
                _send(move, streamed, news["manifest"], news["objects"])
            except LostContact:
                raise
            except MidstreamError as error:  # nothing depends on it: the copy after the seal sends what is not there
                sizes = {}
                move.note(f"{error}; the rest is copied after the seal")


def complete(move: Move, name: str, streamed: Streamed) -> int:
    """After the seal: send what of the sealed checkpoint ``name`` has not arrived yet, and the manifest last. Returns
    the bytes that were sent here. TransferError, LostContact: the same call goes on."""
    if streamed.name != name or not streamed.arrived:
        return bring_checkpoint(move, name, "checkpoint")
    source, target = move.source, move.target
    here, there = move.source_paths.checkpoint(name), move.target_paths.checkpoint(name)
    move.command(source, f"copy the rest of {here} to {target.name}:{there}")
    lot = streamed.lots + 1
    rest = source.call("growing.rest", directory=here, arrived=streamed.arrived, lot=lot, timeout=CALL)
    sent = 0
    if rest["objects"]:
        _send(move, streamed, rest["manifest"], rest["objects"])
        sent = sum(entry["size"] for entry in rest["objects"])
    target.call("growing.commit", directory=there, text=rest["text"], timeout=CALL)
    source.call("growing.tidy", directory=here)
    move.target_side.hand_out_checkpoint(name, move.progress("checkpoint, to each host"))
    return sent


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


def _send(move: Move, streamed: Streamed, manifest: str, objects: list[dict[str, Any]]) -> None:
    """One lot: the tree that ``manifest`` describes."""
    here, there = move.source_paths.checkpoint(streamed.name), move.target_paths.checkpoint(streamed.name)
    report = move.progress("checkpoint, as it is saved" if not move.journal.known("sealed") else "checkpoint")
    copy_objects(move.source, here, move.target, there, manifest_name=manifest, progress=report)
    streamed.lots += 1
    streamed.arrived.update({entry["path"]: entry["sha256"] for entry in objects})
