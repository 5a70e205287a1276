"""``python -m midstream_engine.train --config_path FILE [--SECTION.KEY VALUE ...]``: train a language model.

The configuration is read before anything heavy is imported, so that a mistake in it is answered at once. One of several
processes of an attempt is told its place by ``--trainer.distributed`` or the environment (``config/distributed.py``).
Exit codes: 0 finished or stopped with everything saved, 1 failed, 2 the configuration is wrong, 7 the run belongs to
someone else.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import logging
import os
import secrets
import string
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import yaml

from midstream_engine import records
from midstream_engine.base_directory import resolved_path
from midstream_engine.config import ConfigError, Loaded, TrainerConfig, TrainLmConfig, load_config
from midstream_engine.config.load import USAGE, parse_arguments
from midstream_engine.errors import EngineError
from midstream_engine.processes.rendezvous import Processes, complete, host_name, rendezvous
from midstream_engine.processes.shared_file_systems import find_shared_file_systems
from midstream_engine.trainer.attempt.attempt_record import Attempt, open_attempt, write_config
from midstream_engine.trainer.attempt.status_file import StatusFile
from midstream_engine.trainer.loop.requests import Signals
from midstream_engine.trainer.runtime.host_memory import keep_host_memory
from midstream_engine.trainer.runtime.logs import start_logging

log = logging.getLogger("midstream_engine.train")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one attempt; returns the exit code."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if not arguments or "--help" in arguments or "-h" in arguments:
        print(f"usage: {USAGE}")
        return records.EXIT_DONE if arguments else records.EXIT_CONFIG
    processes = Processes(host=host_name(os.environ))
    try:
        loaded = load_config(arguments)
        run_id = loaded.config.trainer.id or os.environ.get("RUN_ID")
        distributed = complete(loaded.config.trainer.distributed, os.environ)
        if distributed.wanted and not os.environ.get("MIDSTREAM_ATTEMPT"):
            # Nobody has launched them: they meet first, to be told which run and attempt they are.
            processes = rendezvous(distributed, os.environ, str(run_id or ""))
            run_id = processes.from_first("run", lambda: str(run_id or _random_id()).encode()).decode()
        loaded = load_config([*arguments, "--trainer.id", run_id or _random_id()])
        root = loaded.config.trainer.resolved_root()
        os.makedirs(root, exist_ok=True)
        attempt = _open(loaded, root, processes, dict(os.environ))
    except (ConfigError, EngineError, OSError, records.RecordError) as error:
        code = _refuse(error, _code(error), arguments)
        processes.abandon(_one_line(error))
        return _end(code, processes)

    signals = Signals()
    signals.install()
    config = loaded.config
    index, count = distributed.process_id or processes.index, distributed.num_processes or processes.count
    start_logging(None if attempt.launched else attempt.files.log(index), _log_copy(config.trainer, attempt, index))
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
    code, processes = _attempt(loaded, root, attempt, processes, status, signals)
    signals.ignore()
    status.close()
    return _end(code, processes)


def _end(code: int, processes: Processes) -> int:
    """The exit code; where it is no orderly end of one of several processes, that end at once."""
    if code and processes.board is not None:
        logging.shutdown()
        os._exit(code)  # jax would wait for the others, at an end that they do not come to
    return code


def _open(loaded: Loaded, root: str, processes: Processes, environment: dict[str, str]) -> Attempt:
    """The attempt: the launcher's, or a new one that process 0 claims for all."""
    run_id, store = str(loaded.config.trainer.id), loaded.config.trainer.checkpointer.base_path or ""
    if processes.board is None:
        return open_attempt(root, run_id, environment, store)

    def claim() -> bytes:
        attempt = open_attempt(root, run_id, environment, store)
        return json.dumps([attempt.number, attempt.epoch, attempt.target]).encode()

    names = ("MIDSTREAM_ATTEMPT", "MIDSTREAM_EPOCH", "MIDSTREAM_TARGET")
    values = json.loads(processes.from_first("attempt", claim))
    said = {**environment, **{name: str(value) for name, value in zip(names, values, strict=True)}}
    return dataclasses.replace(open_attempt(root, run_id, said, store), launched=False)


def _attempt(
    loaded: Loaded, root: str, attempt: Attempt, processes: Processes, status: StatusFile, signals: Signals
) -> tuple[int, Processes]:
    """The exit code, and the processes that were met on the way."""
    config: TrainLmConfig = loaded.config
    try:
        distributed = complete(config.trainer.distributed, os.environ)
        if distributed.wanted and processes.board is None:
            status.update(message="waits for the other processes")
            processes = rendezvous(distributed, os.environ, f"{attempt.paths.run_id}/{attempt.number}")
            status.update(message="")
        if processes.board is not None:
            processes.watch(lambda obituary: _mourn(obituary, status))
            places = find_shared_file_systems(processes.board, attempt.paths.dir)
            attempt = dataclasses.replace(attempt, processes=processes, places=places)
            if places.spread:
                log.info("no shared file system: checkpoints are spread over %s", ", ".join(sorted(set(places.hosts))))
        for note in loaded.notes:
            log.info(note)
        for warning in loaded.warnings:
            log.warning(warning)
        resolved: dict[str, Any] = config.resolved()
        if not attempt.standby and (attempt.places is None or attempt.places.leads):
            write_config(attempt.paths, resolved)
        log.info("resolved configuration:\n%s", yaml.safe_dump(resolved, sort_keys=False).rstrip())
        ended = _import_run()(config, root, attempt, status, signals)
        status.update(state=ended)
        processes.leave()
    except Exception as happened:
        error = processes.explained(happened)
        code, line = _code(error), _one_line(error)
        # An error of ours explains itself; any other is a fault, and needs its place.
        log.error(line, exc_info=None if isinstance(error, (EngineError, ConfigError)) else error)
        status.update(state=records.FAILED, message=line)
        processes.abandon(line)
        return code, processes
    log.info("%s at step %d", ended, status.value.step)
    return records.EXIT_DONE, processes


def _import_run() -> Callable[..., str]:
    """``trainer.run.run``; jax and haliax are imported here.

    A million objects come with them and stay. The collector of cycles would look through all of them several times
    while they are imported, and again whenever it looks for garbage; a restart would take a tenth longer.
    """
    if "jax" in sys.modules:
        from midstream_engine.trainer.attempt.run_attempt import run

        return run
    gc.disable()
    try:
        from midstream_engine.trainer.attempt.run_attempt import run
    finally:
        gc.freeze()
        gc.enable()
    return run


def _mourn(obituary: str, status: StatusFile) -> None:
    """A process is gone, and this one cannot go on alone; its main thread may be stuck."""
    line = f"{obituary}; this process ends at step {status.value.step}"
    log.error(line)
    status.update(state=records.FAILED, message=line)


def _log_copy(config: TrainerConfig, attempt: Attempt, process: int) -> str | None:
    """Where ``trainer.log_dir`` wants the log, too."""
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
    known = isinstance(error, (EngineError, ConfigError)) or type(error).__module__.startswith("midstream_engine")
    return text if known and text else f"{type(error).__name__}: {text}"[:500]


def _refuse(error: Exception, code: int, arguments: Sequence[str]) -> int:
    line = " ".join(str(error).split())
    print(f"midstream: {line}", file=sys.stderr)
    number = os.environ.get("MIDSTREAM_ATTEMPT", "")
    if number.isdigit():
        _leave_status(line, int(number), arguments)
    return code


def _leave_status(message: str, number: int, arguments: Sequence[str]) -> None:
    """Whoever launched this attempt reads its status, not its exit code: say there why it never began."""
    try:
        flags = dict(parse_arguments(arguments)[1])
        trainer = TrainerConfig(root=flags.get("trainer.root"))
        process = int(flags.get("trainer.distributed.process_id") or os.environ.get("JAX_PROCESS_ID") or 0)
        run_id = records.check_run_id(str(flags.get("trainer.id") or os.environ.get("RUN_ID", "")))
    except (ConfigError, records.RecordError, ValueError):
        return
    files = records.RunPaths(trainer.resolved_root(), run_id).attempt(number)
    if os.path.isdir(files.dir):
        identity = records.this_process().to_json()
        status = records.Status(
            state=records.FAILED, step=0, process=process, heartbeat=time.time(), run_id=run_id, attempt=number,
            message=message, **identity,
        )  # fmt: skip
        status.write(files.status(process))


def _random_id() -> str:
    letters = string.ascii_lowercase + string.digits
    return "".join(secrets.choice(letters) for _ in range(8))


if __name__ == "__main__":
    keep_host_memory()
    sys.exit(main())
