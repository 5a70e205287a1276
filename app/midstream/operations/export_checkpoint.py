"""Export a run's checkpoint to another program's format, on the host that has it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from midstream.errors import Exit, HostError, MidstreamError, UsageError
from midstream.hosts.deadline import Deadline
from midstream.operations.import_run import MODULE, HostPath, follow_converter, host_path_of
from midstream_core import records
from midstream_core.export_formats import DATA_PARALLEL, MODEL_PARALLEL
from midstream_core.listed_checkpoint import newest_checkpoint
from midstream_core.object_store.urls import in_bucket

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet
    from midstream.hosts.host import Host, Process
    from midstream.hosts.host_pool import HostPool
    from midstream.watch.snapshot import RunView
    from midstream_core.listed_checkpoint import ListedCheckpoint

ANSWER_TIMEOUT = 60.0  # seconds
PIN_SECONDS = 86400.0  # after which a run may delete the checkpoint, though the export was killed
MAX_ANSWER = 1 << 16  # bytes


@dataclass(frozen=True)
class ExportRequest:
    """A checkpoint of a run, and where its export is written."""

    run: RunView
    checkpoint: str
    form: str  # one of `EXPORT_FORMATS`
    output: HostPath
    flags: tuple[str, ...] = ()  # further ones of the converter


def split_run(text: str) -> tuple[str, int | None]:
    """Parse ``RUN`` or ``RUN@STEP``; without a step the newest checkpoint is meant.

    Raises:
        UsageError: The step is no number.
    """
    run_id, at, step = text.partition("@")
    if not at:
        return run_id, None
    if not (step.isascii() and step.isdecimal() and len(step) < 19):
        raise UsageError(f"--export {text}: {step!r} is not a step", "RUN or RUN@STEP; midstream --checkpoints RUN")
    return run_id, int(step)


def checkpoint_at(run: RunView, step: int | None) -> ListedCheckpoint:
    """Return the run's complete checkpoint of a step; None: the newest.

    Raises:
        UsageError: There is none.
    """
    chosen = newest_checkpoint(checkpoint for checkpoint in run.usable if step is None or checkpoint.step == step)
    if chosen is None:
        steps = ", ".join(map(str, sorted({checkpoint.step for checkpoint in run.usable}))) or "none"
        what = "no complete checkpoint" if step is None else f"no complete checkpoint of step {step}"
        raise UsageError(f"{run.run_id} on {run.host} has {what}", f"complete: {steps}")
    return chosen


def division_flags(form: str, processes: int | None, model_parallel_size: int | None) -> tuple[str, ...]:
    """Return the converter's flags for the processes that load an export; None: one.

    Raises:
        UsageError: The format is not divided, or a number is below 1.
    """
    flags: list[str] = []
    for flag, value, formats in (
        ("--processes", processes, DATA_PARALLEL),
        ("--model-parallel-size", model_parallel_size, MODEL_PARALLEL),
    ):
        if value is None:
            continue
        if form not in formats:
            raise UsageError(f"{flag}: {form} is written for any number", f"{flag} goes with --as {', '.join(formats)}")
        if value < 1:
            raise UsageError(f"{flag} {value}: at least 1 is needed", f"{flag} 1")
        flags += [flag, str(value)]
    return tuple(flags)


def default_output(run: RunView, checkpoint: str, form: str) -> str:
    """Return a new place for an export of a run, on its host: ``HOST:PATH``."""
    return f"{run.host}:~/{run.run_id}-{checkpoint}-{form}"


def output_of(fleet: Fleet, run: RunView, text: str) -> HostPath:
    """Parse ``PATH`` or ``HOST:PATH``.

    Raises:
        UsageError: It is not on the host that has the checkpoint, or is no absolute path of a host.
    """
    example = f"--output {run.host}:/data/{run.run_id}"
    if run.store:
        raise UsageError(f"the checkpoints of {run.run_id} are in {run.store}: only those of a host are exported")
    if in_bucket(text):
        raise UsageError(f"{text}: an export is written to a directory of a host", example)
    place = host_path_of(fleet, text)
    if place.host != run.host:
        raise UsageError(f"{run.run_id} is on {run.host}: it is exported there, and not on {place.host}", example)
    return place


def export_checkpoint(hosts: HostPool, request: ExportRequest, say: Callable[[str], None]) -> str:
    """Write the export and return the converter's line about it.

    The run is not changed; it keeps the checkpoint until the end.

    ``say`` gets lines of progress.

    Raises:
        MidstreamError: The converter failed, the engine cannot be installed, or the run has deleted the checkpoint;
            nothing is left in the output.
    """
    with pinned(hosts.get(request.run.host), request.run.run_id, request.checkpoint):
        return _export(hosts, request, say)


@contextmanager
def pinned(host: Host, run_id: str, checkpoint: str) -> Generator[None, None, None]:
    """Keep a run from deleting a checkpoint.

    Raises:
        MidstreamError: It has deleted it already.
    """
    from midstream_host.runs import checkpoint_pins, standby_state

    name, expires = f"export-{secrets.token_hex(4)}", host.call(standby_state.clock)() + PIN_SECONDS
    try:
        if host.call(standby_state.pin_newest)(host.root, run_id, name, expires, checkpoint) is None:
            raise MidstreamError(
                f"{host.name}: {checkpoint} of {run_id} is not there any more: the run keeps its newest ones",
                f"midstream --checkpoints {run_id}",
            )
        yield
    finally:
        with suppress(HostError):  # the pin expires
            host.call(checkpoint_pins.unpin)(host.root, run_id, name)


def _export(hosts: HostPool, request: ExportRequest, say: Callable[[str], None]) -> str:
    from midstream.hosts.container_command import in_container
    from midstream.launch.host_group_start import prepare_target
    from midstream.launch.start_attempt import Launch, engine_environment
    from midstream_host.runs.process_start import with_setup

    fleet, run, output = hosts.fleet, request.run, request.output
    host, config = hosts.get(output.host), fleet.hosts[output.host]
    say(f"exporting {request.checkpoint} of {run.run_id} to {output}")
    ready = prepare_target(hosts, fleet.target(output.host), say)[output.host]
    source = records.RunPaths(hosts.get(run.host).root, run.run_id, run.store).checkpoint(request.checkpoint)
    command = [ready.environment.python, "-P", "-m", MODULE, source, output.path]
    command += ["--from", "midstream", "--to", request.form, *request.flags]
    env = engine_environment(host.root, config, ready.engine.directory, Launch(run.run_id, output.host), 0)
    command = in_container(config.container, command, root=host.root, variables=env)
    process = host.open(with_setup(command, config.setup), env=env)
    try:
        code = follow_converter(process, say)
        written = _answer(process)
        messages = process.stderr_text().strip().splitlines()
    finally:
        process.close()
    if code:
        why = (messages[-1] if messages else f"exit code {code}").removeprefix("midstream: ")
        raise MidstreamError(f"{output.host}: {why}", "docs/how-to/export.md says what can be exported", Exit.FAILED)
    if not written:  # an exit code alone proves nothing
        raise MidstreamError(f"{output.host}: the converter has ended without naming what it wrote")
    return written[-1]


def _answer(process: Process) -> list[str]:
    """Return what an ended converter has printed; nothing where no end of it arrives."""
    process.limit_reading(Deadline(ANSWER_TIMEOUT))
    try:
        return process.stdout.read(MAX_ANSWER).decode(errors="replace").strip().splitlines()
    except TimeoutError:
        return []
