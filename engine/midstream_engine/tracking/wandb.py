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

CODE = (".py", ".sh", ".yaml", ".yml", ".toml")  # what counts as code


class WandbTracker:
    """One W&B run a training run: every attempt continues it (``resume``), under the training run's id.

    Metrics are drawn over ``global_step``, so steps that an attempt repeats are no error.
    """

    def __init__(self, config: WandbConfig, facts: RunFacts):
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
            settings=wandb.Settings(silent=True),
        )
        self._run.define_metric("*", step_metric="global_step")
        self._run.summary["attempt"] = facts.attempt
        if code is not None:
            self._save_code(code)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self._run.log({**metrics, "global_step": step})

    def finish(self) -> None:
        if self._config.save_xla_dumps:
            self._save_dumps()
        self._run.finish()

    def _save_code(self, directory: str) -> None:
        """W&B would walk the whole directory, environments and data included: it gets a copy of the code alone."""
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
    """The directory whose code is saved: the one given, else the git repository of the main program, else the program's
    own directory. None where nothing is to be saved."""
    if not save_code:
        return None
    if isinstance(save_code, str):
        return resolved_path(save_code)
    program = getattr(sys.modules.get("__main__"), "__file__", None) or __file__
    directory = os.path.dirname(os.path.abspath(program))
    return _git(directory, "rev-parse", "--show-toplevel") or directory


def code_files(directory: str) -> list[str]:
    """The code under ``directory``, relative to it: what git tracks, else all but hidden directories."""
    tracked = _git(directory, "ls-files")
    if tracked is not None:
        found = tracked.splitlines()
    else:
        found = []
        for folder, folders, names in os.walk(directory):
            folders[:] = [name for name in folders if not name.startswith(".") and name != "__pycache__"]
            found += [os.path.relpath(os.path.join(folder, name), directory) for name in names]
    return sorted(name for name in found if name.endswith(CODE) and os.path.isfile(os.path.join(directory, name)))


def git_commit(directory: str | None) -> str | None:
    """``$GIT_COMMIT``, else the commit of the repository; None where there is none."""
    return os.environ.get("GIT_COMMIT") or (_git(directory, "rev-parse", "HEAD") if directory else None)


def dump_directory(flags: str) -> str | None:
    """Where XLA was told to dump its programs."""
    match = re.search(r"--xla_dump_to=(\S+)", flags)
    return match[1] if match else None


def _git(directory: str, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", directory, *arguments], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
