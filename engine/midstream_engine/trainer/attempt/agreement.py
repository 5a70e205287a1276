"""What process 0 finds on its host and decides for all: the order that an attempt was started with, and where the run
goes on. Hosts may lack files that others have; they never begin differently."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from typing import Any, TypeVar

from midstream_engine import records
from midstream_engine.checkpoint.stores import in_bucket, open_store
from midstream_engine.errors import EngineError
from midstream_engine.processes.rendezvous import Processes
from midstream_engine.trainer.attempt.attempt_record import Attempt
from midstream_engine.trainer.attempt.resume import Origin
from midstream_engine.trainer.loop.requests import CommandFile

T = TypeVar("T")
TURN = 7 * 24 * 3600.0  # seconds: tokenizing takes as long as it takes; a process that dies at it is noticed


def agree_on_command(processes: Processes, orders: CommandFile) -> None:
    """Give every process the order that process 0 was started with."""
    if processes.board is None:
        return
    order = orders.order
    text = json.dumps(order.to_json() if order is not None else None).encode()
    said = json.loads(processes.from_first("first-order", lambda: text))
    if said is not None:
        orders.take(records.Command.from_json(said, "the order of process 0"))


def agree_on_origin(attempt: Attempt, find: Callable[[], Origin | None]) -> Origin | None:
    """The checkpoint that process 0 found; its own directories every process has under the root of its own."""
    processes = attempt.processes
    if processes.board is None:
        return find()

    def said() -> bytes:
        origin = find()
        if origin is None:
            return b"null"
        manifest = json.loads(open_store(origin.directory).get(records.MANIFEST))
        return json.dumps({"origin": dataclasses.asdict(origin), "manifest": manifest}).encode()

    value: dict[str, Any] | None = json.loads(processes.from_first("origin", said))
    if value is None:
        return None
    origin = Origin(**value["origin"])
    if origin.own and not in_bucket(attempt.paths.checkpoints):
        origin = dataclasses.replace(origin, directory=attempt.paths.checkpoint(origin.name))
    _complete_share(attempt, origin, records.Manifest.from_json(value["manifest"], origin.name))
    return origin


def _complete_share(attempt: Attempt, origin: Origin, manifest: records.Manifest) -> None:
    """A share of a spread checkpoint whose host was cut off right before it wrote its manifest: process 0 has
    committed, and all else was there before."""
    places, store = attempt.places, open_store(origin.directory)
    if not manifest.hosts or places is None or not places.leads or store.exists(records.MANIFEST):
        return
    if os.path.isdir(origin.directory) and places.host in {entry.host for entry in manifest.spread_hosts}:
        dataclasses.replace(manifest, host=places.host).write(os.path.join(origin.directory, records.MANIFEST))


def in_turn(attempt: Attempt, work: Callable[[], T]) -> T:
    """``work``, which leaves files behind, done by the first process of each place, then by those that find them."""
    board, places = attempt.processes.board, attempt.places
    if board is None or places is None:
        return work()
    first = places.first[board.process]
    if first != board.process:
        board.take("turn", first, patience=TURN)
    result = work()
    if first == board.process:
        for process in places.at(first)[1:]:
            board.post("turn", b"", process)
    return result


def check_alike(processes: Processes, what: str, value: str) -> None:
    """EngineError naming the process whose ``value`` differs from process 0's."""
    if processes.board is None:
        return
    said = [text.decode() for text in processes.board.exchange(f"alike-{what}", value.encode())]
    for peer, theirs in zip(processes.board.peers, said, strict=True):
        if theirs != said[0]:
            raise EngineError(f"{what} differs: {theirs} on {peer}, {said[0]} on {processes.board.peers[0]}")
