"""The config that travels with a run, checked before it reaches a target: it is a file of the source host.

The engine on the target does what ``run.yaml`` says. So it may include no other file and name no processes to meet, and
a place outside of the run's directory that is written to, or that programs are read from, is shown to the person who
moves the run: such a line is part of the plan's consent. Places that are only read (texts, tokenizers, checkpoints) are
data, and stay as they are.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import yaml

from midstream.errors import MidstreamError, RemoteError
from midstream.plain_yaml import load_plain
from midstream.remote.copy.allowlist import shown
from midstream_engine import records

if TYPE_CHECKING:
    from midstream.hosts.host import Host
    from midstream.migrate.model import Plan

LIMIT = 1 << 20  # bytes
# What the engine only reads, or looks after itself: docs/security.md lists the fields.
_READ = re.compile(
    r"data\.(configs\.[^.]*\.)?(train_urls|validation_urls)(\[\d+\])?|data\.(configs\.[^.]*\.)?(id|name|text_key)"
    r"|data\.(tokenizer|eos_token|cache_dir)|trainer\.(load_checkpoint_path|initialize_from)"
    r"|trainer\.checkpointer\.base_path|trainer\.(root|id)|(model|optimizer)\..*"
    r"|trainer\.jax_compilation_cache(_dir)?"  # never the source's: `Plan.target_flags`
)
_PROGRAMS = "trainer.jax_config"  # where compiled programs are read from, among others
_SECTIONS = ("data", "model", "trainer", "optimizer")
_MEETING = ("coordinator_address", "num_processes", "process_id")


def read_config(source: Host, run_id: str) -> tuple[str, dict[str, Any]]:
    """Text and value of ``run.yaml``. MidstreamError where it cannot be read, or is no config of a run."""
    path = records.RunPaths(source.root, run_id).config
    where = f"{source.name}:{path}"
    try:
        text: str = source.call("runs.run_state.read_text", path=path)
    except RemoteError as error:
        raise MidstreamError(f"{where} cannot be read: {error}", "the run directory needs its run.yaml") from error
    return text, parse_config(text, where)


def parse_config(text: str, where: str) -> dict[str, Any]:
    """The value of a ``run.yaml``. MidstreamError where it is no plain mapping: tags (``!include``) are refused."""
    if len(text) > LIMIT:
        raise MidstreamError(f"{where} is larger than {LIMIT:,} bytes", "the run directory needs its run.yaml")
    try:
        value = load_plain(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        what = shown(" ".join(str(error.problem or error.context).split()))
        raise MidstreamError(
            f"{where}, line {line}: {what}", "a run's config includes no file and has no tags: mend it there"
        ) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        what = shown(" ".join(str(error).split()))
        raise MidstreamError(f"{where} is malformed: {what}", "the run directory needs its run.yaml") from None
    value = {} if value is None else value
    if not isinstance(value, dict) or not all(isinstance(value.get(name, {}), dict | None) for name in _SECTIONS):
        raise MidstreamError(f"{where} holds no keys and values", "the run directory needs its run.yaml")
    return value


def check_config(
    config: Mapping[str, Any], source: str, target: str, stores: tuple[str, ...], given: Mapping[str, str]
) -> tuple[str, ...]:
    """A line for each place of a config from ``source`` that a person has to agree to before ``target`` uses it.

    Args:
        stores: Buckets that the plan names for the run's checkpoints.
        given: Engine flags of the person who moves the run (``trainer.log_dir`` -> value): they win over the config.

    Raises:
        MidstreamError: The config names processes to meet, or a bucket for checkpoints that the plan does not.
    """
    trainer = config.get("trainer") or {}
    distributed = trainer.get("distributed") or {}
    named = [name for name in _MEETING if isinstance(distributed, dict) and distributed.get(name) is not None]
    if named or not isinstance(distributed, dict):
        raise MidstreamError(
            f"run.yaml of {source} sets trainer.distributed.{(*named, '')[0]}: processes are told by who starts them",
            f"remove it there: {source} may not say whom {target} connects to",
        )
    checkpointer = trainer.get("checkpointer") or {}
    bucket = str((checkpointer.get("base_path") if isinstance(checkpointer, dict) else None) or "").rstrip("/")
    if bucket and bucket not in stores and "trainer.checkpointer.base_path" not in given:
        raise MidstreamError(
            f"run.yaml of {source} keeps checkpoints in {shown(bucket)}, and the run does not",
            f"-- --trainer.checkpointer.base_path {shown(bucket)} where that is meant, or remove it there",
        )
    return tuple(
        f"run.yaml of {source} sets {shown(key)}: {shown(value)}, outside of the run's directory: {target} would "
        + _what_it_does(key)
        for key, value in _leaves(config)
        if _leaves_the_run(value) and not _READ.fullmatch(key) and not _is_given(key, given)
    )


def agreed_config(source: Host, plan: Plan) -> str:
    """The text of ``run.yaml`` on the source, as it may go to the plan's target. MidstreamError where it names a place
    that nobody has agreed to."""
    text, config = read_config(source, plan.run_id)
    stores = tuple(store for store in (plan.source_store, plan.target_store) if store)
    lines = check_config(config, plan.source, plan.target, stores, engine_flags(plan.overrides))
    for line in lines:
        if line not in plan.consent:
            raise MidstreamError(f"{line}: it did not when the move was planned", "plan it again, and look at it")
    return text


def engine_flags(words: Sequence[str]) -> dict[str, str]:
    """The engine flags that were given after ``--``, by name: ``--name VALUE`` or ``--name=VALUE``."""
    found: dict[str, str] = {}
    for place, word in enumerate(words):
        if not word.startswith("--"):
            continue
        name, equals, value = word[2:].partition("=")
        if equals or (place + 1 < len(words) and not words[place + 1].startswith("--")):
            found[name] = value if equals else words[place + 1]
    return found


def _leaves(value: Any, key: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    """(key, text) of every text in the config."""
    if isinstance(value, str):
        yield key, value
    elif depth > 16:
        raise MidstreamError(f"{shown(key)} in run.yaml is nested too deeply", "the run directory needs its run.yaml")
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _leaves(item, f"{key}.{name}" if key else str(name), depth + 1)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _leaves(item, f"{key}[{number}]", depth + 1)
    elif value is not None and not isinstance(value, bool | int | float | datetime.date):
        raise MidstreamError(f"{shown(key)} in run.yaml is no plain value", "the run directory needs its run.yaml")


def _what_it_does(key: str) -> str:
    if key.startswith(_PROGRAMS):
        return "read compiled programs from there, and run them"
    return "send the code that lies there to W&B" if key.endswith(".save_code") else "write there"


def _leaves_the_run(value: str) -> bool:
    return value.startswith(("/", "~")) or "://" in value or ".." in value.replace("\\", "/").split("/")


def _is_given(key: str, given: Mapping[str, str]) -> bool:
    return any(key == name or key.startswith((f"{name}.", f"{name}[")) for name in given)
