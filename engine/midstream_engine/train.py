"""``python -m midstream_engine.train --config_path FILE [--SECTION.KEY VALUE ...]``: train a language model.

The configuration is read before anything heavy is imported, so that a mistake in it is answered at once. Exit codes:
0 finished or stopped with everything saved, 1 failed, 2 the configuration is wrong, 7 the run belongs to someone else.
"""

from __future__ import annotations

import logging
import os
import secrets
import string
import sys
import time
from collections.abc import Sequence
from typing import Any

import yaml

from midstream_engine import records
from midstream_engine.config import ConfigError, Loaded, TrainerConfig, TrainLmConfig, load_config
from midstream_engine.config.load import USAGE, parse_arguments
from midstream_engine.errors import EngineError
from midstream_engine.trainer.attempt import Attempt, open_attempt, write_config
from midstream_engine.trainer.host_memory import keep_host_memory
from midstream_engine.trainer.logs import start_logging
from midstream_engine.trainer.requests import Signals
from midstream_engine.trainer.status import StatusFile

log = logging.getLogger("midstream_engine.train")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one attempt; returns the exit code."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if not arguments or "--help" in arguments or "-h" in arguments:
        print(f"usage: {USAGE}")
        return records.EXIT_DONE if arguments else records.EXIT_CONFIG
    try:
        loaded = load_config(arguments)
        run_id = loaded.config.trainer.id or os.environ.get("RUN_ID") or _random_id()
        loaded = load_config([*arguments, "--trainer.id", run_id])
        root = loaded.config.trainer.resolved_root()
        os.makedirs(root, exist_ok=True)
        attempt = open_attempt(root, str(run_id), os.environ, loaded.config.trainer.checkpointer.base_path or "")
    except ConfigError as error:
        return _refuse(error, records.EXIT_CONFIG, arguments)
    except EngineError as error:
        return _refuse(error, error.code, arguments)
    except (OSError, records.RecordError) as error:
        return _refuse(error, records.EXIT_FAILED, arguments)

    signals = Signals()
    signals.install()
    config = loaded.config
    start_logging(None if attempt.launched else attempt.files.log(), _log_copy(config.trainer, attempt))
    status = StatusFile(
        attempt.files.status(),
        run_id=attempt.paths.run_id,
        attempt=attempt.number,
        epoch=attempt.epoch,
        num_train_steps=config.trainer.num_train_steps,
    )
    if attempt.held:
        status.update(epoch=0)
    try:
        return _attempt(loaded, root, attempt, status, signals)
    finally:
        status.close()


def _attempt(loaded: Loaded, root: str, attempt: Attempt, status: StatusFile, signals: Signals) -> int:
    config: TrainLmConfig = loaded.config
    try:
        for note in loaded.notes:
            log.info(note)
        for warning in loaded.warnings:
            log.warning(warning)
        resolved: dict[str, Any] = config.resolved()
        if not attempt.held:
            write_config(attempt.paths, resolved)
        log.info("resolved configuration:\n%s", yaml.safe_dump(resolved, sort_keys=False).rstrip())
        from midstream_engine.trainer.run import run  # jax and haliax are imported here

        ended = run(config, root, attempt, status, signals)
    except Exception as error:
        code = _code(error)
        line = _one_line(error)
        # An error of ours explains itself; any other is a fault, and needs its place.
        log.error(line, exc_info=None if isinstance(error, (EngineError, ConfigError)) else error)
        status.update(state=records.FAILED, message=line)
        return code
    status.update(state=ended)
    log.info("%s at step %d", ended, status.value.step)
    return records.EXIT_DONE


def _log_copy(config: TrainerConfig, attempt: Attempt) -> str | None:
    """Where ``trainer.log_dir`` wants the log, too."""
    if not config.log_dir:
        return None
    directory = os.path.join(os.path.expanduser(config.log_dir), attempt.paths.run_id)
    return os.path.join(directory, f"attempt-{attempt.number:03d}.log")


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
        run_id = records.check_run_id(str(flags.get("trainer.id") or os.environ.get("RUN_ID", "")))
    except (ConfigError, records.RecordError):
        return
    files = records.RunPaths(trainer.resolved_root(), run_id).attempt(number)
    if os.path.isdir(files.dir):
        identity = records.this_process().to_json()
        status = records.Status(
            state=records.FAILED, step=0, process=0, heartbeat=time.time(), run_id=run_id, attempt=number,
            message=message, **identity,
        )  # fmt: skip
        status.write(files.status())


def _random_id() -> str:
    letters = string.ascii_lowercase + string.digits
    return "".join(secrets.choice(letters) for _ in range(8))


if __name__ == "__main__":
    keep_host_memory()
    sys.exit(main())
