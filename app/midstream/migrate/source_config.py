"""Reader and checks of a run's config before it is copied to a target.

The config is a file of the source host.

The engine on the target applies ``run.yaml``. It must therefore not include other files nor set addresses of other
processes. A path outside of the run's directory that is written to, or that programs are read from, is shown to the
user and is part of the plan's consent. Paths that are only read (texts, tokenizers, checkpoints) are data and are not
changed.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

import yaml

from midstream.errors import MidstreamError, RemoteError
from midstream.hosts.host import Host
from midstream.launch.engine_flags import engine_flags
from midstream.migrate.config_values import check_values
from midstream.migrate.journal.json_values import section
from midstream.migrate.journal.plan import Plan
from midstream.plain_yaml import load_plain
from midstream_core import records
from midstream_core.json_types import JsonObject, JsonValue, object_or_empty
from midstream_host.allowlist import shown
from midstream_host.driver.run_file import is_run_file
from midstream_host.runs import run_state

LIMIT = 1 << 20  # bytes
# Fields that the engine only reads or validates itself, as listed in docs/explanation/security.md.
_READ = re.compile(
    r"data\.(configs\.[^.]*\.)?(train_urls|validation_urls)(\[\d+\])?|data\.(configs\.[^.]*\.)?(id|name|text_key)"
    r"|data\.(tokenizer|eos_token|cache_dir)|trainer\.(load_checkpoint_path|initialize(_model)?_from)"
    r"|trainer\.checkpointer\.base_path|trainer\.(root|id)|(model|optimizer)\..*"
    r"|trainer\.jax_compilation_cache(_dir)?"  # `Plan.target_flags` replaces it
)
_PROGRAMS = "trainer.jax_config"  # has directories that compiled programs are read from
_SECTIONS = ("data", "model", "trainer", "optimizer")
_RENDEZVOUS = ("coordinator_address", "num_processes", "process_id")


def read_config(source: Host, run_id: str) -> tuple[str, dict[str, JsonValue]]:
    """Return text and value of ``run.yaml``.

    Raises:
        MidstreamError: It cannot be read, or is no config of a run.
    """
    path = records.RunPaths(source.root, run_id).config
    where = f"{source.name}:{path}"
    try:
        text: str = source.call(run_state.read_text)(path=path)
    except RemoteError as error:
        raise MidstreamError(f"{where} cannot be read: {error}", "the run directory needs its run.yaml") from error
    return text, parse_config(text, where)


def parse_config(text: str, where: str) -> dict[str, JsonValue]:
    """Parse the text of a ``run.yaml``.

    Raises:
        MidstreamError: It is no plain mapping, or has a value that no run can have. Tags (``!include``) are refused.
    """
    if len(text) > LIMIT:
        raise MidstreamError(f"{where} is larger than {LIMIT:,} bytes", "the run directory needs its run.yaml")
    try:
        value = load_plain(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        what = shown(" ".join(str(error.problem or error.context).split()))
        raise MidstreamError(
            f"{where}, line {line}: {what}",
            f"remove includes and tags from {where.partition(':')[0]}'s run.yaml: a run's config must be plain YAML",
        ) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        what = shown(" ".join(str(error).split()))
        raise MidstreamError(f"{where} is malformed: {what}", "the run directory needs its run.yaml") from None
    config = cast("dict[str, Any]", value or {}) if isinstance(value, dict | None) else None
    sections: tuple[str, ...] = () if is_run_file(config) else _SECTIONS
    if config is None or not all(isinstance(config.get(name), dict | None) for name in sections):
        raise MidstreamError(f"{where} is not a mapping", "the run directory needs its run.yaml")
    if sections:
        check_values(config, where)
    return config


def check_config(
    config: JsonObject, source: str, target: str, stores: tuple[str, ...], given: Mapping[str, str]
) -> tuple[str, ...]:
    """Return a line for each value of a config that needs the user's consent.

    Args:
        config: Content of run.yaml.
        source: Host that the config is from.
        target: Target that would use it.
        stores: Buckets that the plan names for the run's checkpoints.
        given: Engine flags of the user (``trainer.log_dir`` -> value), which replace values of the config.

    Raises:
        MidstreamError: The config sets the address of other processes, or a bucket for checkpoints that is not in
            ``stores``.
    """
    trainer = section(config, "trainer")
    rendezvous: object = trainer.get("distributed") or {}
    distributed = cast("dict[str, Any]", rendezvous) if isinstance(rendezvous, dict) else None
    named = [name for name in _RENDEZVOUS if distributed is not None and distributed.get(name) is not None]
    if named or distributed is None:
        raise MidstreamError(
            f"run.yaml of {source} sets trainer.distributed.{(*named, '')[0]}, which only the launcher may set",
            f"remove it there: {source} must not choose the processes that {target} connects to",
        )
    checkpointer = trainer.get("checkpointer")
    base_path = object_or_empty(checkpointer).get("base_path")
    bucket = str(base_path or "").rstrip("/")
    if bucket and bucket not in stores and "trainer.checkpointer.base_path" not in given:
        raise MidstreamError(
            f"run.yaml of {source} stores checkpoints in {shown(bucket)}, and the run does not",
            f"-- --trainer.checkpointer.base_path {shown(bucket)} if that is intended, or remove it there",
        )
    return tuple(
        f"run.yaml of {source} sets {shown(key)}: {shown(value)}, outside of the run's directory: {target} would "
        + _effect(key)
        for key, value in _leaves(config)
        if _is_outside_run(value) and not _READ.fullmatch(key) and not _is_given(key, given)
    )


def agreed_config(source: Host, plan: Plan) -> str:
    """Return the text of ``run.yaml`` on the source, for the plan's target.

    Raises:
        MidstreamError: It has a value that needs consent and is not in the plan's.
    """
    if plan.trainer is not None:
        return plan.trainer.run_text  # as it was agreed to, whatever the source has now
    text, config = read_config(source, plan.run_id)
    stores = tuple(store for store in (plan.route.source_store, plan.route.target_store) if store)
    lines = check_config(config, plan.source, plan.target, stores, engine_flags(plan.shape.overrides))
    for line in lines:
        if line not in plan.policy.consent:
            raise MidstreamError(
                f"{line}: it did not when the migration was planned", "plan it again and check the plan"
            )
    return text


def _leaves(value: Any, key: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    """Yield (key, text) of each text in the config."""
    if isinstance(value, str):
        yield key, value
    elif depth > 16:
        raise MidstreamError(f"{shown(key)} in run.yaml is nested too deeply", "the run directory needs its run.yaml")
    elif isinstance(value, dict):
        for name, item in cast("dict[Any, Any]", value).items():
            yield from _leaves(item, f"{key}.{name}" if key else str(name), depth + 1)
    elif isinstance(value, list):
        for number, item in enumerate(cast("list[Any]", value)):
            yield from _leaves(item, f"{key}[{number}]", depth + 1)
    elif value is not None and not isinstance(value, bool | int | float | datetime.date):
        raise MidstreamError(f"{shown(key)} in run.yaml is not a plain value", "the run directory needs its run.yaml")


def _effect(key: str) -> str:
    if key.startswith(_PROGRAMS):
        return "read compiled programs from there and run them"
    return "send the code in it to W&B" if key.endswith(".save_code") else "write there"


def _is_outside_run(value: str) -> bool:
    return value.startswith(("/", "~")) or "://" in value or ".." in value.replace("\\", "/").split("/")


def _is_given(key: str, given: Mapping[str, str]) -> bool:
    return any(key == name or key.startswith((f"{name}.", f"{name}[")) for name in given)
