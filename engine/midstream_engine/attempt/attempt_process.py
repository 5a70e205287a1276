"""One process of an attempt, from its configuration to the record of its end."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import json
import logging
import os
import secrets
import signal
import string
import sys
import time
from collections.abc import Callable, Sequence

import yaml

from midstream_core import records
from midstream_core.attempt.earlier_process import running_earlier
from midstream_core.attempt.errors import AlreadyRunningError, CheckpointError, ContradictionError, EngineError
from midstream_core.attempt.status_file import StatusFile
from midstream_core.json_types import JsonValue
from midstream_engine.base_directory import resolved_path
from midstream_engine.config import ConfigError, Loaded, TrainerConfig, TrainLmConfig, load_config
from midstream_engine.config.load import USAGE, parse_arguments
from midstream_engine.config.tracker import labels_of
from midstream_engine.printable import printable
from midstream_engine.processes.coordinator_client import PeerLostError
from midstream_engine.processes.rendezvous import Processes, complete, host_name, rendezvous
from midstream_engine.processes.shared_file_systems import find_shared_file_systems
from midstream_engine.runtime.attempt_record import (
    AttemptRecord,
    open_attempt,
    read_config,
    restore_config,
    write_config,
)
from midstream_engine.runtime.deferred_packages import import_packages
from midstream_engine.runtime.logs import start_logging
from midstream_engine.signals import Signals

PREPARING = frozenset({records.STARTING, records.COMPILING, records.RESTORING})  # before the first step
log = logging.getLogger("midstream_engine.train")


def run_process(arguments: Sequence[str], signals: Signals) -> int:
    """Run one process of an attempt; returns the exit code.

    Args:
        arguments: Of the command line.
        signals: Installed already.
    """
    if not arguments or "--help" in arguments or "-h" in arguments:
        return _print_usage(records.EXIT_DONE if arguments else records.EXIT_CONFIG)
    processes = Processes(host=host_name(os.environ))
    try:
        loaded = load_config(arguments)
        run_id = _checked(loaded.config.trainer.id or os.environ.get("RUN_ID"))
        _ = loaded.config.data.given_tokenizer  # a mistake that is reported before anything is written
        distributed = complete(loaded.config.trainer.distributed, os.environ)
        if distributed.has_peers and not os.environ.get("MIDSTREAM_ATTEMPT"):
            # Started without a launcher: process 0 decides run and attempt, so the rendezvous comes first.
            processes = rendezvous(distributed, os.environ, str(run_id or ""), _print_end_of_others)
            run_id = processes.broadcast("run", lambda: str(run_id or _random_id()).encode()).decode()
        loaded = load_config([*arguments, "--trainer.id", run_id or _random_id()])
        root = loaded.config.trainer.resolved_root()
        os.makedirs(root, exist_ok=True)
        attempt = _open(loaded, root, processes, dict(os.environ))
        number = distributed.process_id or processes.index
        earlier = running_earlier(attempt.files.status(number))
        if earlier:
            raise AlreadyRunningError(earlier)
    except (ConfigError, EngineError, OSError, records.RecordError) as error:
        code = _refuse(error, _code(error), arguments)
        processes.abandon(_one_line(error))
        return _end(code, processes)

    config = loaded.config
    index, count = distributed.process_id or processes.index, distributed.num_processes or processes.count
    start_logging(None if attempt.launched else attempt.files.log(index), _log_copy(config.trainer, attempt, index))
    signals.expect_record()
    status = StatusFile(
        attempt.files.status(index),
        run_id=attempt.paths.run_id,
        attempt=attempt.number,
        epoch=attempt.first_epoch,
        num_train_steps=config.trainer.num_train_steps,
        process=index,
        processes=count,
        host=processes.host,
    )
    signals.record_end_with(functools.partial(_record_signal, status, processes))
    labels = labels_of(config.trainer.tracker)
    status.update(project=labels.project, tags=list(labels.tags))
    code, processes = _attempt(loaded, root, attempt, processes, status, signals)
    status.close()
    return _end(code, processes)


def _print_usage(code: int) -> int:
    """Print the usage; return ``code``, or EXIT_FAILED if it cannot be printed."""
    try:
        print(f"usage: {USAGE}", flush=True)
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            print(f"midstream: the output cannot be written: {error.strerror}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter writes the rest at its exit
        return records.EXIT_FAILED
    return code


def _end(code: int, processes: Processes) -> int:
    """Return the exit code.

    After a failure in an attempt of several processes, exit immediately.
    """
    if code and processes.client is not None:
        logging.shutdown()
        os._exit(code)  # jax's exit handler would wait for the other processes
    return code


def _open(loaded: Loaded, root: str, processes: Processes, environment: dict[str, str]) -> AttemptRecord:
    """Open the launcher's attempt, or a new one that process 0 claims for all."""
    run_id, store = str(loaded.config.trainer.id), loaded.config.trainer.checkpointer.base_path or ""
    if processes.client is None:
        return open_attempt(root, run_id, environment, store)

    def claim() -> bytes:
        attempt = open_attempt(root, run_id, environment, store)
        return json.dumps([attempt.number, attempt.epoch, attempt.target]).encode()

    names = ("MIDSTREAM_ATTEMPT", "MIDSTREAM_EPOCH", "MIDSTREAM_TARGET")
    values = json.loads(processes.broadcast("attempt", claim))
    combined = {**environment, **{name: str(value) for name, value in zip(names, values, strict=True)}}
    return dataclasses.replace(open_attempt(root, run_id, combined, store), launched=False)


def _attempt(
    loaded: Loaded, root: str, attempt: AttemptRecord, processes: Processes, status: StatusFile, signals: Signals
) -> tuple[int, Processes]:
    """Run the attempt. Returns the exit code and the connected processes."""
    config: TrainLmConfig = loaded.config
    resolved: dict[str, JsonValue] = config.resolved()
    before: bytes | None = None  # of ``run.yaml``, where this process replaces it
    try:
        distributed = complete(config.trainer.distributed, os.environ)
        if distributed.has_peers and processes.client is None:
            status.update(message="waits for the other processes")
            token = f"{attempt.paths.run_id}/{attempt.number}"
            processes = rendezvous(
                distributed, os.environ, token, lambda failure: _end_together(failure, status, signals)
            )
            status.update(message="")
        elif processes.client is not None:
            _end_together(processes, status, signals)
        if processes.client is not None:
            file_systems = find_shared_file_systems(processes.client, attempt.paths.dir)
            attempt = dataclasses.replace(attempt, processes=processes, file_systems=file_systems)
            if file_systems.spread:
                hosts = ", ".join(sorted(set(file_systems.hosts)))
                log.info("no shared file system: checkpoints are spread over %s", hosts)
        for note in loaded.notes:
            log.info(note)
        for warning in loaded.warnings:
            log.warning(warning)
        if not attempt.standby and (attempt.file_systems is None or attempt.file_systems.leads):
            before = read_config(attempt.paths)
            write_config(attempt.paths, resolved)
        log.info("resolved configuration:\n%s", yaml.safe_dump(resolved, sort_keys=False).rstrip())
        ended = _import_run()(config, root, attempt, status, signals)
        status.update(state=ended)
        processes.leave()
    except Exception as happened:
        error = processes.explained(happened)
        code, line = _code(error), _one_line(error)
        # Errors of the engine have a full message; any other is a bug, whose traceback is needed.
        log.error(line, exc_info=None if isinstance(error, (EngineError, ConfigError, CheckpointError)) else error)
        if before is not None and status.value.state in PREPARING:
            # Its flags may be the reason: the next attempt starts without them.
            try:
                restore_config(attempt.paths, resolved, before)
            except OSError as refused:
                log.error("run.yaml remains this attempt's: %s", refused)
        if isinstance(error, PeerLostError):
            status.end(records.FAILED, line)  # no change after this process's own end: everything is saved
        else:
            shown = error.contradiction if isinstance(error, ContradictionError) else ""
            status.update(state=records.FAILED, message=line, contradiction=shown)
        processes.abandon(line)
        return code, processes
    log.info("%s at step %d", ended, status.value.step)
    return records.EXIT_DONE, processes


def _import_run() -> Callable[..., str]:
    """Import and return `run_attempt.run`, with jax and haliax.

    The imports create a million objects that stay. The garbage collector would traverse them several times during the
    import, and in every later collection; a restart would take a tenth longer.
    """
    if "jax" in sys.modules:
        from midstream_engine.attempt.run_attempt import run

        return run
    gc.disable()
    try:
        import_packages()
        from midstream_engine.attempt.run_attempt import run
    finally:
        gc.freeze()
        gc.enable()
    return run


def _end_together(processes: Processes, status: StatusFile, signals: Signals) -> None:
    """End the other processes with this one, and this one with them."""
    signals.record_end_with(functools.partial(_record_signal, status, processes))
    processes.watch(lambda failure: _report_failure(failure, status), lambda stop: _stop_too(stop, status))


def _print_end_of_others(processes: Processes) -> None:
    """Print why this process ends with another one, before the attempt has a status."""

    def say(line: str) -> None:
        with contextlib.suppress(OSError):  # stderr is a log on a full disk
            print(f"midstream: {line}", file=sys.stderr, flush=True)

    processes.watch(say, say)


def _report_failure(failure: str, status: StatusFile) -> None:
    """Report the failure of another process, without which this one cannot continue.

    The main thread of this process may be blocked.
    """
    line = f"{failure}; this process ends at step {status.value.step}"
    log.error(line)
    status.end(records.FAILED, line)  # no change after this process's own end: everything is saved


def _record_signal(status: StatusFile, processes: Processes, name: str, updates_lost: bool) -> int:
    """Record that the signal ``name`` ends this process at once; return the exit code."""
    now = status.value
    line = f"stopped by {name} while {now.state}: there was no update to save"
    if updates_lost:
        line = f"ended by a second SIGINT at step {now.step}, not saved: a restart continues at "
        line += now.checkpoint or "its first step"
    if not status.end(records.FAILED if updates_lost else records.STOPPED, line):
        # Everything is recorded; only trackers or other processes were waited for.
        return records.EXIT_FAILED if status.value.state == records.FAILED else records.EXIT_DONE
    if updates_lost:
        log.error(line)
        processes.abandon(line)
        return records.EXIT_SIGNAL + signal.SIGINT
    log.info(line)
    processes.stop(line)
    return records.EXIT_DONE


def _stop_too(stop: str, status: StatusFile) -> None:
    """Stop at once, because another process has before the first update.

    The main thread may be blocked.
    """
    log.info(stop)
    status.end(records.STOPPED, stop)


def _log_copy(config: TrainerConfig, attempt: AttemptRecord, process: int) -> str | None:
    """Return the path of the log's copy in ``trainer.log_dir``; None if it is not set."""
    if not config.log_dir:
        return None
    directory = os.path.join(resolved_path(config.log_dir), attempt.paths.run_id)
    number = f"{attempt.number:03d}" if process == 0 else f"{attempt.number:03d}-{process}"
    return os.path.join(directory, f"attempt-{number}.log")


def _code(error: Exception) -> int:
    if isinstance(error, ConfigError):
        return records.EXIT_CONFIG
    return error.code if isinstance(error, EngineError) else records.EXIT_FAILED


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    expected = isinstance(error, (EngineError, ConfigError)) or type(error).__module__.startswith("midstream_")
    return printable(text if expected and text else f"{type(error).__name__}: {text}"[:500])


def _refuse(error: Exception, code: int, arguments: Sequence[str]) -> int:
    line = printable(" ".join(str(error).split()))
    with contextlib.suppress(OSError):  # stderr is a log on a full disk: the status is tried, and may fit
        print(f"midstream: {line}", file=sys.stderr, flush=True)
    number = os.environ.get("MIDSTREAM_ATTEMPT", "")
    if number.isdecimal() and not isinstance(error, AlreadyRunningError):  # the status is the running process's
        with contextlib.suppress(OSError):  # the launcher finds that the process has ended
            _leave_status(line, int(number), arguments)
    return code


def _leave_status(message: str, number: int, arguments: Sequence[str]) -> None:
    """Write a failed status for the launcher.

    The launcher reads the status and not the exit code.
    """
    try:
        flags = dict(parse_arguments(arguments)[1])
        trainer = TrainerConfig(root=flags.get("trainer.root"))
        process = int(flags.get("trainer.distributed.process_id") or os.environ.get("JAX_PROCESS_ID") or 0)
        run_id = records.check_run_id(str(flags.get("trainer.id") or os.environ.get("RUN_ID", "")))
    except (ConfigError, records.RecordError, ValueError):
        return
    files = records.RunPaths(trainer.resolved_root(), run_id).attempt(number)
    if os.path.isdir(files.dir):
        identity = records.this_process()
        status = records.Status(
            state=records.FAILED, step=0, process=process, heartbeat=time.time(), run_id=run_id, attempt=number,
            message=message, pid=identity.pid, start_ticks=identity.start_ticks, boot_id=identity.boot_id,
            machine=identity.machine, namespace=identity.namespace,
        )  # fmt: skip
        status.write(files.status(process))


def _checked(run_id: str | None) -> str | None:
    """Return the id if it may name a directory, or is not given."""
    try:
        return records.check_run_id(run_id) if run_id else None
    except records.RecordError as error:
        raise ConfigError(f"trainer.id: {error}") from None


def _random_id() -> str:
    letters = string.ascii_lowercase + string.digits
    return "".join(secrets.choice(letters) for _ in range(8))
