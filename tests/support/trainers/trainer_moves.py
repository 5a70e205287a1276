"""Runs of real trainers of PyPI: their run files, and what a run of them is compared with."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from simulators.sshd import free_port
from support.trainers.trainer_processes import PROGRAMS, children_of

STEPS = 100000  # more than a test trains
SAMPLES = 65536  # an epoch of 8192 steps: a loader may begin its second epoch in another order after a resume
PAUSE = 0.15  # seconds a step


@dataclass(frozen=True)
class Trainer:
    """A trainer's run file.

    ``command`` follows the interpreter, or starts with a launcher; ``resume`` is added to it.
    """

    name: str
    command: str
    resume: str = "--resume {checkpoint}"
    more: str = ""
    dropout: float = 0.1
    resume_command: str = ""  # instead of the command with ``resume`` behind it

    def write(self, directory: Path, python: str, every: int = 10) -> Path:
        """Write the run file beside the scripts, and return its path."""
        directory.mkdir(parents=True)
        for script in PROGRAMS.glob("*.py"):
            if not script.name.startswith(("test_", "conftest")):
                shutil.copy(script, directory)
        settings = PROGRAMS / f"{self.name}.yaml"
        if settings.exists():
            shutil.copy(settings, directory)
        command = self._filled_in(self.command, every)
        text = [
            f"trainer: {self.name}",
            f"command: {json.dumps(command)}",
            f"resume: {json.dumps(self._filled_in(self.resume_command or f'{self.command} {self.resume}', every))}",
            f"steps: {STEPS}",
            'files: ["*.py", "*.yaml"]' if self.name == "levanter" else 'files: ["*.py"]',
            f"environment: {{python: {python}, variables: {{STEP_SECONDS: '{PAUSE}', OMP_NUM_THREADS: '1', "
            f"DROPOUT: '{self.dropout}', SAMPLES: '{SAMPLES}'}}}}",
            self.more,
        ]
        file = directory / "run.yaml"
        file.write_text("\n".join(text) + "\n")
        return file

    @staticmethod
    def _filled_in(words: str, every: int) -> str:
        return words.replace("EVERY", str(every)).replace("STEPS", str(STEPS))


SINGLE = "{python} train_%s.py {out} --steps STEPS --save-every EVERY"
HUGGINGFACE = Trainer("huggingface", SINGLE % "huggingface")
DIVIDED = Trainer(  # over processes
    "huggingface",
    "{python} -m torch.distributed.run --nproc_per_node {devices} --master_addr {master} --master_port {port} "
    "train_huggingface.py {out} --steps STEPS --save-every EVERY --batch {per_device} --accumulation {accumulation}",
    more="batch: {sequences: 8, per_device: 4}",
)
LIGHTNING = Trainer(
    "lightning", SINGLE % "lightning" + " --stateful", more="stored: {data_position: 'yes'}", dropout=0.0
)
SHUFFLED = Trainer("lightning", SINGLE % "lightning")
ACCELERATE = Trainer(
    "accelerate",
    SINGLE % "accelerate" + " --stateful --seedable",
    more='metrics: {source: jsonl, path: "{out}/metrics.jsonl", first_step: 1}\ncheckpoints: {pattern: "step_*"}',
    dropout=0.0,
)
TORCHRUN = Trainer(
    "torchrun",
    "{python} -m torch.distributed.run --nproc_per_node {devices} --master_addr {master} --master_port {port} "
    "train_torchrun.py {out} --steps STEPS --save-every EVERY",
    more='metrics: {source: jsonl, path: "{out}/metrics.jsonl", first_step: 1}\nbatch: {kept_by: trainer}',
)
GROUPED = replace(
    TORCHRUN, command=TORCHRUN.command.replace("--nproc", "--nnodes {nodes} --node_rank {rank} --nproc", 1)
)
SCRIPT = Trainer(
    "script",
    SINGLE % "script",
    resume="--resume",
    more='metrics: {source: regex, pattern: "iter (?P<step>[0-9]+): loss (?P<loss>[^,]+), lr (?P<learning_rate>'
    '[^,]+)"}\n'
    'checkpoints: {rule: glob, pattern: "ckpt.pt", rewritten: true}',
    dropout=0.0,
)


DEEPSPEED = Trainer(
    "deepspeed",
    "{python} -m torch.distributed.run --nproc_per_node {devices} --master_addr {master} --master_port {port} "
    "save_deepspeed.py {out} --steps STEPS --save-every EVERY",
    resume="--resume {out}",
    more='metrics: {source: jsonl, path: "{out}/metrics.jsonl", first_step: 1}\nbatch: {kept_by: trainer}',
)

SHARDED = replace(DEEPSPEED, command=f"{DEEPSPEED.command} --stage 3")

# ds_to_universal is run where the run starts again, and each number of processes loads what it writes.
UNIVERSAL = Trainer(
    "deepspeed",
    DEEPSPEED.command,
    more=DEEPSPEED.more,
    resume_command="sh -c '{python} -m deepspeed.checkpoint.ds_to_universal --input_folder {checkpoint} "
    "--output_folder {out}/universal/moved --num_extract_workers 1 --num_merge_workers 1 "
    "--inject_missing_state && exec " + DEEPSPEED.command + " --resume {out}/universal --universal'",
)


LEVANTER = Trainer(
    "levanter",
    "{python} train_levanter.py --config_path levanter.yaml --trainer.id r --out {out} "
    "--trainer.checkpointer.base_path {out}/checkpoints --trainer.num_train_steps STEPS",
    resume="--trainer.load_checkpoint true --trainer.load_checkpoint_path {checkpoint}",
    more='metrics: {source: jsonl, path: "{out}/metrics.jsonl"}\nbatch: {kept_by: trainer}',
)


def undisturbed(
    trainer: Trainer,
    python: str,
    directory: Path,
    steps: int,
    devices: int = 1,
    variables: Mapping[str, str] | None = None,
) -> dict[int, float]:
    """Return the exact losses by step (from 0) of a run of the same script that nothing interrupts.

    Args:
        trainer: Its run file.
        python: Its interpreter.
        directory: Its scripts are in ``code`` below it; it writes to ``straight``.
        steps: Number of losses.
        devices: Number of ranks.
        variables: Further environment, as the fleet file's of the hosts that it is compared with.
    """
    words = trainer.command.replace("EVERY", str(STEPS)).replace("STEPS", str(STEPS)).split()
    values = {
        "{python}": python,
        "{out}": str(directory / "straight"),
        "{devices}": str(devices),
        "{per_device}": str(8 // devices),
        "{accumulation}": "1",
        "{nodes}": "1",
        "{rank}": "0",
        "{master}": "127.0.0.1",
        "{port}": str(free_port()),
    }
    (directory / "straight").mkdir()
    process = subprocess.Popen(
        [_filled(word, values) for word in words],
        cwd=directory / "code",
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "STEP_SECONDS": "0",
            "PYTHONUNBUFFERED": "1",
            "DROPOUT": str(trainer.dropout),
            "SAMPLES": str(SAMPLES),
            **(variables or {}),
        },
    )
    found: dict[int, float] = {}
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("rank=0 step="):
            fields = dict(word.split("=", 1) for word in line.split())
            found[int(fields["step"])] = float.fromhex(fields["loss"])
            if len(found) == steps:
                break
    ranks = children_of(process.pid)
    os.killpg(process.pid, signal.SIGKILL)
    for rank in ranks:  # torchrun starts each in a session of its own, and they hold the pipe
        with suppress(ProcessLookupError):
            os.kill(rank, signal.SIGKILL)
    process.communicate()
    first = min(found)
    return {step - first: loss for step, loss in found.items()}


def _filled(word: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        word = word.replace(name, value)
    return word
