"""Last event of a command: one class for each kind of command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from midstream.json_events.json_event import HOST, MIGRATION, RUN, TARGET, JsonEvent


class ResultEvent(JsonEvent, event="result"):
    """The last line of a command that acts or judges, and of one that fails."""

    ok: Annotated[bool, "the command did what was requested"] = True
    exit_code: Annotated[int | None, "exit code of the command"] = None


class ErrorResult(ResultEvent):
    error: Annotated[str, "what happened, if it failed"]
    hint: Annotated[str, "what to do"]


class CheckResult(ResultEvent, of=("--check", "--doctor")):
    target: Annotated[str | None, TARGET] = None
    run: Annotated[str | None, RUN] = None
    pass_: Annotated[int, "checks that passed"]
    warn: Annotated[int, "checks with a warning"]
    fail: Annotated[int, "checks that failed"]


class LaunchResult(ResultEvent, of=("--launch", "--restart")):
    run: Annotated[str, RUN]
    target: Annotated[str, TARGET]
    attempt: Annotated[int, "number of the attempt"]
    state: Annotated[str, "the state of its first process, training if it did not end at once"]
    step: Annotated[int, "its step"]


class AdoptResult(ResultEvent, of=("--adopt",)):
    run: Annotated[str, RUN]
    host: Annotated[str, HOST]
    attempt: Annotated[int, "number of the attempt"]


class InitRunResult(ResultEvent, of=("--init-run",)):
    file: Annotated[str, "the run file that was written"]
    inferred: Annotated[Sequence[str], "what was inferred, and from what, one line each"]
    missing: Annotated[Sequence[str], "what was not inferred and has to be filled in, one line each"]


class StopResult(ResultEvent, of=("--stop",)):
    run: Annotated[str, RUN]
    host: Annotated[str, HOST]
    step: Annotated[int | None, "the last step"] = None
    checkpoint: Annotated[str | None, "the checkpoint"] = None


class DryRunResult(ResultEvent, of=("--migrate",)):
    dry_run: Annotated[bool, "nothing was changed"] = True
    run: Annotated[str | None, RUN]
    migration: Annotated[str | None, MIGRATION]


class MigrationResult(ResultEvent, of=("--migrate", "--continue", "--rollback")):
    time: Annotated[float, "UTC seconds"]
    message: Annotated[str, "what happened"]
    migration: Annotated[str, MIGRATION]
    run: Annotated[str, RUN]
    outcome: Annotated[str, "completed, rolled back, interrupted, rollback incomplete or moved on"]
    certificate: Annotated[Mapping[str, object] | None, "the certificate"]
    downtime: Annotated[Mapping[str, object] | None, "the downtime report"]
    duration: Annotated[Mapping[str, object], "estimated and measured seconds by stage"]


class RepairResult(ResultEvent, of=("--repair",)):
    run: Annotated[str, RUN]
    damaged: Annotated[int, "number of damaged records"]
    written: Annotated[int, "number of records written"]


class CleanResult(ResultEvent, of=("--clean",)):
    leftovers: Annotated[int, "their number"]
    removable: Annotated[int, "number that can be removed and remains"]


class DeleteResult(ResultEvent, of=("--delete",)):
    deleted: Annotated[str, "the slice, or the pods"]


class ArraysResult(ResultEvent, of=("--checkpoints",)):
    checkpoint: Annotated[str, "the checkpoint"]
    root_digest: Annotated[str, "the root digest"]


class ConfigResult(ResultEvent, of=("--config",)):
    run: Annotated[str, RUN]
    attempts: Annotated[Sequence[int], "both attempts"]
    changes: Annotated[int, "number of differences"]


class VerifyResult(ResultEvent, of=("--verify",)):
    checkpoint: Annotated[str, "the checkpoint"]
    objects: Annotated[int, "number of objects"]
    bytes: Annotated[int, "bytes"]
    root_digest: Annotated[str | None, "the root digest"]
    deep: Annotated[bool, "every array was decoded"]
    problems: Annotated[Sequence[Sequence[str]], "pairs of path and what is wrong"]


class ReshardResult(ResultEvent, of=("--reshard",)):
    checkpoint: Annotated[str, "the directory that was written, for load_checkpoint"]
    step: Annotated[int | None, "the checkpoint's step"]
    ranks_before: Annotated[int, "data-parallel processes that saved it"]
    ranks: Annotated[int, "data-parallel processes that load it"]
    files: Annotated[int, "number of files"]
    bytes: Annotated[int, "bytes"]
    digests: Annotated[Mapping[str, str], "SHA-256 of each kind of number, equal before and after"]
    continued: Annotated[int, "files that an ended command had written"]


class RecheckResult(ResultEvent, of=("--verify",)):
    migration: Annotated[str, MIGRATION]
    run: Annotated[str, RUN]
    not_checked: Annotated[int, "number of claims that can no longer be checked"]
    duration: Annotated[Mapping[str, object], "estimated and measured seconds by stage"]


class LabelResult(ResultEvent, of=("--label",)):
    run: Annotated[str, RUN]
    name: Annotated[str, "shown beside the id; empty: none"]
    tags: Annotated[Sequence[str], "those of its tracker are not among them"]
    note: Annotated[str, "a line of text"]


class DiffResult(ResultEvent, of=("--diff",)):
    root_digests: Annotated[Sequence[str], "of both"]
    checkpoints: Annotated[Sequence[str], "names of both"]
    differences: Annotated[Sequence[Mapping[str, object]], "arrays that differ"]


class ReportResult(ResultEvent, of=("--report",)):
    run: Annotated[str, RUN]
    file: Annotated[str, "the page that was written"]
    migrations: Annotated[int, "number of migrations in it"]
    not_known: Annotated[Sequence[str], "what could not be read, one line each"]


class ExportResult(ResultEvent, of=("--export",)):
    run: Annotated[str, RUN]
    checkpoint: Annotated[str, "the checkpoint"]
    format: Annotated[str, "the format"]
    host: Annotated[str, HOST]
    path: Annotated[str, "the directory on that host"]


class FollowResult(ResultEvent, of=("--log",)):
    run: Annotated[str, RUN]
    attempt: Annotated[int, "number of the attempt"]
    state: Annotated[str | None, "as it ended; null: it left no status"]
    step: Annotated[int | None, "the last step; null: it left no status"]


class SearchResult(ResultEvent, of=("--log",)):
    matches: Annotated[int, "number of lines with a match"]
    lines: Annotated[int, "number of lines of the log"]


class CompareResult(ResultEvent, of=("--compare",)):
    compared: Annotated[str, "the run or the configuration"]
    best: Annotated[str | None, "the first candidate that fits; null: none"]
