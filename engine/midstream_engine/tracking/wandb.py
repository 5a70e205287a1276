"""Weights & Biases."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping

from midstream_engine.base_directory import resolved_path
from midstream_engine.config.tracker import WandbConfig
from midstream_engine.tracking.run_facts import RunFacts

FLUSH_INTERVAL = 1.0  # seconds until a row is in W&B's file, so that a killed engine loses no others
CODE = (".py", ".sh", ".yaml", ".yml", ".toml")  # suffixes of code


class WandbTracker:
    """Tracker with one W&B run per training run.

    Every attempt continues it (``resume``), under the training run's id. W&B's step is the training step: of a step
    that an attempt repeats, W&B keeps the values that it received first.
    """

    def __init__(self, config: WandbConfig, facts: RunFacts) -> None:
        import wandb

        self._config = config
        code = code_directory(config.save_code)
        os.makedirs(facts.directory, exist_ok=True)
        self._run = wandb.init(
            entity=config.entity,
            project=config.project,
            name=config.name,
            tags=config.tags or None,
            id=config.id or facts.run_id,
            group=config.group,
            mode=config.mode,  # pyright: ignore[reportArgumentType]
            resume=config.resume,
            dir=facts.directory,
            config={**facts.config, "git_commit": git_commit(code)},
            allow_val_change=True,
            settings={"silent": True, "x_transaction_log_flush_interval": FLUSH_INTERVAL},
        )
        self._run.define_metric("*", step_metric="global_step")
        self._run.summary["attempt"] = facts.attempt
        if code is not None:
            self._save_code(code)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        # Without commit, W&B would hold the row back until the next step's.
        self._run.log({**metrics, "global_step": step}, step=step, commit=True)

    def finish(self) -> None:
        if self._config.save_xla_dumps:
            self._save_dumps()
        self._run.finish()

    def _save_code(self, directory: str) -> None:
        """Log a copy of the code.

        W&B would walk the original with its environments and data.
        """
        with tempfile.TemporaryDirectory() as copy:
            for name in code_files(directory):
                os.makedirs(os.path.dirname(os.path.join(copy, name)), exist_ok=True)
                shutil.copyfile(os.path.join(directory, name), os.path.join(copy, name))
            self._run.log_code(root=copy, include_fn=lambda path: path.endswith(CODE))

    def _save_dumps(self) -> None:
        import wandb

        directory = dump_directory(os.environ.get("XLA_FLAGS", ""))
        if directory is None or not os.path.isdir(directory):
            raise FileNotFoundError("save_xla_dumps needs --xla_dump_to=DIRECTORY in $XLA_FLAGS")
        artifact = wandb.Artifact(f"xla-{self._run.id}", type="xla_dump")
        artifact.add_dir(directory)
        self._run.log_artifact(artifact)


def code_directory(save_code: bool | str | None) -> str | None:
    """Return the directory whose code is saved; None if none is to be saved.

    A path in ``save_code`` is preferred to the git repository of the main program, and that to the program's directory.
    """
    if not save_code:
        return None
    if isinstance(save_code, str):
        return resolved_path(save_code)
    program = getattr(sys.modules.get("__main__"), "__file__", None) or __file__
    directory = os.path.dirname(os.path.abspath(program))
    return _git(directory, "rev-parse", "--show-toplevel") or directory


def code_files(directory: str) -> list[str]:
    """Return the paths of the code in ``directory``.

    Without git all files outside of hidden directories count, else those that git tracks.
    """
    tracked = _git(directory, "ls-files")
    if tracked is not None:
        names_below = tracked.splitlines()
    else:
        names_below = []
        for folder, folders, names in os.walk(directory):
            folders[:] = [name for name in folders if not name.startswith(".") and name != "__pycache__"]
            names_below += [os.path.relpath(os.path.join(folder, name), directory) for name in names]
    return sorted(name for name in names_below if name.endswith(CODE) and os.path.isfile(os.path.join(directory, name)))


def git_commit(directory: str | None) -> str | None:
    """Return ``$GIT_COMMIT``, else the commit of the repository.

    None if there is none.
    """
    return os.environ.get("GIT_COMMIT") or (_git(directory, "rev-parse", "HEAD") if directory else None)


def dump_directory(flags: str) -> str | None:
    """Return the directory of ``--xla_dump_to`` in ``flags``; None without one."""
    match = re.search(r"--xla_dump_to=(\S+)", flags)
    return match[1] if match else None


def _git(directory: str, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", directory, *arguments], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
