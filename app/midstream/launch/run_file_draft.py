"""Run files made from a trainer's directory, process, output and help.

Where nothing is shown, there is a comment to fill in, and a line that says so.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from midstream.launch import flags_of_help
from midstream.launch.flags_of_help import HelpFlag, chosen, value_in, with_value
from midstream.launch.initial_run_file import trainer_of, with_placeholders
from midstream.launch.secret_words import secrets_note, without_secrets
from midstream.trainers.registry import SCRIPT, TRAINERS
from midstream_core.visible_devices import VISIBLE
from midstream_host.trainers.output_survey import MetricsFile, OutputFiles
from midstream_host.trainers.processes import TrainerDirectory, TrainingProcess

_SHOWN_VARIABLES = re.compile(r"(HF_|TORCH|NCCL_|CUDA_|WANDB_|OMP_|TOKENIZERS_)")
_LAST_NUMBER = re.compile(r"\d+(?!.*\d)")


@dataclass(frozen=True)
class Evidence:
    """Evidence of how a trainer is started and what it writes.

    ``flags``: of its help, by name; empty where that was not read, for the reason ``no_help``.
    """

    directory: TrainerDirectory
    launcher: TrainingProcess | None = None
    output: OutputFiles = field(default_factory=OutputFiles)
    flags: Mapping[str, HelpFlag] = field(default_factory=dict[str, HelpFlag])
    python: str = ""  # the interpreter of its environment; empty: not known
    no_help: str = ""

    @property
    def program(self) -> str:
        """The program that trains, of the process, else by its name; empty: none."""
        words = self.launcher.words if self.launcher is not None else []
        named = next((word for word in words if word.endswith(".py")), "")
        programs = self.directory.programs
        return named or next((name for name in programs if "train" in name), (programs or [""])[0])


@dataclass
class Draft:
    """A run file, and what it was inferred from.

    ``inferred`` and ``missing`` have one line each: what is known and from what, and what has to be filled in.
    """

    lines: list[str] = field(default_factory=list[str])
    inferred: list[str] = field(default_factory=list[str])
    missing: list[str] = field(default_factory=list[str])

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"


def draft(evidence: Evidence) -> Draft:
    """Return the run file that the evidence describes."""
    result = Draft()
    trainer, launcher = trainer_of(evidence.directory, evidence.launcher), evidence.launcher
    defaults = TRAINERS[trainer]
    words, secrets = (
        without_secrets(launcher.words) if launcher is not None else (_program_words(evidence), list[str]())
    )
    result.lines += [
        f"# A run of {defaults.title}; docs: how-to/trainers. Check what is marked.",
        f"trainer: {trainer}",
    ]
    if trainer != SCRIPT.name:
        result.inferred.append(f"trainer: {defaults.title}, by its command and imports")
    elif evidence.program:
        result.inferred.append(f"trainer: script, as neither command nor imports of {evidence.program} show another")
    else:
        result.missing.append(f"program: {evidence.directory.directory} has no .py file, and no process runs in it")
    words, out = _output(evidence, words, result)
    words, resume = _resume_words(evidence, words)
    command = with_placeholders(words)
    result.lines.append(f"command: {json.dumps(command)}" + ("" if launcher is not None else "  # check: its flags"))
    if launcher is not None:
        result.inferred.append(f"command: of process {launcher.pid}")
    else:
        result.missing.append(f"command: no process runs in {evidence.directory.directory}; its flags are not known")
    if defaults.resume is not None:
        result.lines.append(f"# resume: the command with {' '.join(defaults.resume) or 'nothing more'}")
    else:
        _add_resume(command, resume, evidence, result)
    if out:
        result.lines.append(f"out: {json.dumps(out)}  # where it writes, as {{out}}")
    result.lines.append('files: ["*.py"]  # code and data that travel')
    _add_steps(evidence, words, result)
    _add_batch(evidence, result)
    if defaults.checkpoints is None:
        _add_checkpoints(evidence, out, result)
    if defaults.metrics is None:
        _add_metrics(evidence, out, result)
    _add_environment(evidence, result)
    result.lines += [f"# {secrets_note(secrets)}"] if secrets else []
    result.lines += [f"# {advice}" for advice in defaults.stored.advice]
    return result


def _program_words(evidence: Evidence) -> list[str]:
    """Return a command for a program that does not run, by its help."""
    flag = chosen(evidence.flags, flags_of_help.OUTPUT)
    name = flag.name if flag is not None else "--output_dir"
    return ["python", evidence.program or "train.py", name, "{out}"]


def _output(evidence: Evidence, words: list[str], result: Draft) -> tuple[list[str], str]:
    """Return the command with ``{out}``, and the directory that it stands for.

    The latter is empty for ``out``, and where nothing shows it.
    """
    if evidence.launcher is None:
        return words, ""
    directory = evidence.directory.directory
    given = value_in(words, flags_of_help.OUTPUT)
    if given is not None:
        path = posixpath.normpath(posixpath.join(directory, given[1]))
        relative = posixpath.relpath(path, directory)
        if not relative.startswith("..") and relative != ".":
            result.inferred.append(f"out: {relative}, the value of {given[0]}")
            return with_value(words, given[0], "{out}"), "" if relative == "out" else relative
    folders = Counter(posixpath.dirname(path) for path in evidence.output.checkpoints)
    folder = folders.most_common(1)[0][0] if folders else ""
    if folder:
        result.inferred.append(f"out: {folder}, which has its newest checkpoints")
        return words, folder
    result.missing.append("out: no flag of the command and no checkpoint shows where it writes")
    return words, ""


def _resume_words(evidence: Evidence, words: list[str]) -> tuple[list[str], HelpFlag | None]:
    """Return the command without a flag that resumes, and that flag."""
    given = value_in(words, flags_of_help.RESUME)
    if given is not None:
        return with_value(words, given[0], None), HelpFlag(given[0])
    return words, chosen(evidence.flags, flags_of_help.RESUME)


def _add_resume(command: str, flag: HelpFlag | None, evidence: Evidence, result: Draft) -> None:
    if flag is None:
        words = f"{command} --resume {{checkpoint}}"
        result.missing.append(f"resume: {_why_no_help(evidence, 'no flag of its help resumes')}")
    else:
        words = f"{command} {flag.name} {{checkpoint}}" if flag.takes_value else f"{command} {flag.name}"
        result.inferred.append(f"resume: {flag.name}, a flag of the program")
        if not flag.takes_value:
            result.missing.append(f"resume: {flag.name} takes no path: the script has to find {{checkpoint}} by itself")
    result.lines.append(f"resume: {json.dumps(words)}  # check: how the script resumes")


def _why_no_help(evidence: Evidence, otherwise: str) -> str:
    return f"the help was not read: {evidence.no_help}" if evidence.no_help else otherwise


def _add_steps(evidence: Evidence, words: list[str], result: Draft) -> None:
    given, flag = value_in(words, flags_of_help.STEPS), chosen(evidence.flags, flags_of_help.STEPS)
    name, value = given or ((flag.name, flag.default) if flag is not None else ("", ""))
    if value.isascii() and value.isdecimal() and int(value[:15]) > 0:
        result.lines.append(f"steps: {int(value[:15])}")
        result.inferred.append(f"steps: {value}, {'the value' if given else 'the default'} of {name}")
    else:
        result.lines.append("# steps: 100000  # of the run: by them it is known when it has finished")
        result.missing.append("steps: no flag has their number")


def _add_batch(evidence: Evidence, result: Draft) -> None:
    result.lines.append(
        "batch: {kept_by: fixed}  # or {sequences: 64, per_device: 8} with {accumulation} and {per_device} in command"
    )
    flags = (chosen(evidence.flags, flags_of_help.PER_DEVICE), chosen(evidence.flags, flags_of_help.ACCUMULATION))
    names = " and ".join(flag.name for flag in flags if flag is not None)
    words = f"write {{per_device}} and {{accumulation}} behind {names}" if names else "no flag divides it"
    result.missing.append(f"batch: the number of devices stays what it is; {words}")


def _add_checkpoints(evidence: Evidence, out: str, result: Draft) -> None:
    names = [_below(path, out or "out") for path in evidence.output.checkpoints]
    patterns = Counter(_pattern(name) for name in names if name)
    if not patterns:
        result.lines.append('checkpoints: {rule: glob, pattern: "ckpt-*.pt"}  # check: below {out}')
        result.missing.append("checkpoints: no file below the directory has the name of one")
        return
    pattern, count = patterns.most_common(1)[0]
    result.lines.append(f"checkpoints: {{rule: glob, pattern: {json.dumps(pattern)}}}  # check: below {{out}}")
    result.inferred.append(f"checkpoints: {pattern}, by {count} that {'is' if count == 1 else 'are'} there")


def _pattern(name: str) -> str:
    """Return a pattern of names that differ in the last number of their last part."""
    folder, slash, last = name.rpartition("/")
    return folder + slash + _LAST_NUMBER.sub("*", last)


def _below(path: str, out: str) -> str:
    """Return a path relative to ``out``; empty where it is elsewhere."""
    return path.removeprefix(f"{out}/") if path.startswith(f"{out}/") else ""


def _add_metrics(evidence: Evidence, out: str, result: Draft) -> None:
    beside = [metrics_ for metrics_ in evidence.output.metrics if _below(metrics_.path, out or "out")]
    metrics: MetricsFile | None = next(iter([*beside, *evidence.output.metrics]), None)
    if metrics is None:
        result.lines.append('metrics: {source: jsonl, path: "{out}/metrics.jsonl"}  # check')
        result.missing.append("metrics: no .jsonl, .csv or TensorBoard file has a loss with a step")
        return
    inside = _below(metrics.path, out or "out")
    path = f"{{out}}/{inside}" if inside else metrics.path
    if metrics.source == "tensorboard":
        path = posixpath.dirname(path) + "/*"
    first = f", first_step: {metrics.first}" if metrics.first == 1 else ""
    result.lines.append(f"metrics: {{source: {metrics.source}, path: {json.dumps(path)}{first}}}  # check")
    result.inferred.append(
        f"metrics: {metrics.path}, which has losses by step" + (f", from {metrics.first} on" if first else "")
    )


def _add_environment(evidence: Evidence, result: Draft) -> None:
    if evidence.python:
        result.lines.append(
            f"environment: {{python: {json.dumps(evidence.python)}}}  # or lock: conda-lock.yml, uv.lock"
        )
        result.inferred.append(f"environment.python: {evidence.python}")
    else:
        result.lines.append(
            "# environment: {python: /path/to/python}  # or lock: conda-lock.yml, uv.lock; else python: of each host"
        )
        result.missing.append("environment: no process and no .venv shows the interpreter")
    if evidence.launcher is None:
        return
    variables = [name for name in evidence.launcher.variables if _SHOWN_VARIABLES.match(name) and name != VISIBLE]
    devices = evidence.launcher.distributed.get(VISIBLE)
    if devices is not None:
        result.lines.append(f"# it had {VISIBLE}={devices}  # devices: [{devices}] of the host in the fleet file")
    if variables:
        result.lines.append(f"# variables that it had: {', '.join(variables)}  # environment: {{variables: {{...}}}}")
