"""Schemas of the files that midstream's programs share: run directory, manifest.

The engine and the app import this package, and its source is streamed to hosts where nothing is installed. The package
therefore uses the standard library alone and runs on Python 3.8.

- `run_paths`: paths and names. `files`: atomic writes, bounded reads. `record`: the base class of all records.
- `fence`, `lineage`, `command`, `run_files`: records of a run. `process_status`, `evidence`: written by an attempt.
- `process_states`: states and exit codes of its processes.
- `manifest`, `digests`: checkpoints. `metrics_rows`: rows of ``metrics.jsonl``.

Paths are POSIX strings: the host that has the file may be another machine than the one that builds its path. Times are
UTC seconds since the epoch. Update ``k`` (from 0) consumes batch ``k`` and logs ``global_step: k``; checkpoint
``step-N`` is the state after ``N`` updates, so ``N`` is the next line's ``global_step``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from midstream_core.records.command import PROMOTE, REPLAY, RESTORE, SAVE, STANDBY, STANDBYS, STARTS, STOP, Command
    from midstream_core.records.digests import (
        IMPORTED,
        batch_digest,
        crc32c_base64,
        data_digests,
        root_digest,
        tokenizer_digests,
    )
    from midstream_core.records.errors import DamagedRecordError, NewerFormatError, RecordError
    from midstream_core.records.evidence import ParameterDrift, Restore, TrainerEvidence
    from midstream_core.records.fence import ClosedStart, Fence, Seal, first_fence
    from midstream_core.records.field_forms import (
        CHECKPOINT_NAME,
        DIGEST,
        DIGEST_OR_EMPTY,
        DTYPE,
        NAME,
        RUN_ID,
        RUN_ID_OR_EMPTY,
    )
    from midstream_core.records.files import (
        LARGEST_FILE,
        append_line,
        canonical_json,
        finite_json,
        locked,
        open_lines,
        open_regular,
        parse_json,
        read_bytes,
        read_json,
        read_json_or_none,
        remove_unfinished_files,
        sync_directory,
        write_bytes,
        write_json,
    )
    from midstream_core.records.lineage import Lineage, LineageEntry
    from midstream_core.records.manifest import (
        FORMAT,
        FORMAT_VERSION,
        MANIFEST,
        PACKED,
        TRAIN,
        ArrayEntry,
        Manifest,
        ObjectEntry,
        SpreadHost,
        checkpoint_state,
        safe_relative,
    )
    from midstream_core.records.metrics_rows import (
        START_NUMBER,
        both_nan,
        difference_text,
        parse_metrics,
        relative_difference,
        start_of,
    )
    from midstream_core.records.ownership_chain import PUBLIC_KEY, OwnershipChain, OwnershipRecord
    from midstream_core.records.process_identity import (
        ProcessIdentity,
        boot_id,
        has_ended,
        identify,
        is_running,
        this_process,
    )
    from midstream_core.records.process_states import (
        COMPILING,
        ENDED,
        EXIT_CONFIG,
        EXIT_DONE,
        EXIT_FAILED,
        EXIT_FENCED,
        EXIT_SIGNAL,
        FAILED,
        FINISHED,
        ON_STANDBY,
        REPLAYING,
        RESTORING,
        SAVING,
        STARTING,
        STOPPED,
        STOPPING,
        TRAINING,
        WAITING,
    )
    from midstream_core.records.process_status import Device, ProcessExit, Status
    from midstream_core.records.record import JsonRecord, check_format
    from midstream_core.records.run_files import MigrationLock, Pin, Store
    from midstream_core.records.run_paths import (
        AttemptPaths,
        RunPaths,
        attempt_name,
        check_run_id,
        checkpoint_name,
        parse_checkpoint_name,
    )
    from midstream_core.records.share import SHARE, Share

__all__ = [
    "CHECKPOINT_NAME",
    "COMPILING",
    "DIGEST",
    "DIGEST_OR_EMPTY",
    "DTYPE",
    "ENDED",
    "EXIT_CONFIG",
    "EXIT_DONE",
    "EXIT_FAILED",
    "EXIT_FENCED",
    "EXIT_SIGNAL",
    "FAILED",
    "FINISHED",
    "FORMAT",
    "FORMAT_VERSION",
    "IMPORTED",
    "LARGEST_FILE",
    "MANIFEST",
    "NAME",
    "ON_STANDBY",
    "PACKED",
    "PROMOTE",
    "PUBLIC_KEY",
    "REPLAY",
    "REPLAYING",
    "RESTORE",
    "RESTORING",
    "RUN_ID",
    "RUN_ID_OR_EMPTY",
    "SAVE",
    "SAVING",
    "SHARE",
    "STANDBY",
    "STANDBYS",
    "STARTING",
    "STARTS",
    "START_NUMBER",
    "STOP",
    "STOPPED",
    "STOPPING",
    "TRAIN",
    "TRAINING",
    "WAITING",
    "ArrayEntry",
    "AttemptPaths",
    "ClosedStart",
    "Command",
    "DamagedRecordError",
    "Device",
    "Fence",
    "JsonRecord",
    "Lineage",
    "LineageEntry",
    "Manifest",
    "MigrationLock",
    "NewerFormatError",
    "ObjectEntry",
    "OwnershipChain",
    "OwnershipRecord",
    "ParameterDrift",
    "Pin",
    "ProcessExit",
    "ProcessIdentity",
    "RecordError",
    "Restore",
    "RunPaths",
    "Seal",
    "Share",
    "SpreadHost",
    "Status",
    "Store",
    "TrainerEvidence",
    "append_line",
    "attempt_name",
    "batch_digest",
    "boot_id",
    "both_nan",
    "canonical_json",
    "check_format",
    "check_run_id",
    "checkpoint_name",
    "checkpoint_state",
    "crc32c_base64",
    "data_digests",
    "difference_text",
    "finite_json",
    "first_fence",
    "has_ended",
    "identify",
    "is_running",
    "locked",
    "open_lines",
    "open_regular",
    "parse_checkpoint_name",
    "parse_json",
    "parse_metrics",
    "read_bytes",
    "read_json",
    "read_json_or_none",
    "relative_difference",
    "remove_unfinished_files",
    "root_digest",
    "safe_relative",
    "start_of",
    "sync_directory",
    "this_process",
    "tokenizer_digests",
    "write_bytes",
    "write_json",
]

_NAMES = {  # module -> its names; a module is loaded with the first use of one of them
    "command": ("PROMOTE", "REPLAY", "RESTORE", "SAVE", "STANDBY", "STANDBYS", "STARTS", "STOP", "Command"),
    "digests": ("IMPORTED", "batch_digest", "crc32c_base64", "data_digests", "root_digest", "tokenizer_digests"),
    "errors": ("DamagedRecordError", "NewerFormatError", "RecordError"),
    "evidence": ("ParameterDrift", "Restore", "TrainerEvidence"),
    "fence": ("ClosedStart", "Fence", "Seal", "first_fence"),
    "field_forms": ("CHECKPOINT_NAME", "DIGEST", "DIGEST_OR_EMPTY", "DTYPE", "NAME", "RUN_ID", "RUN_ID_OR_EMPTY"),
    "files": (
        "LARGEST_FILE",
        "append_line",
        "canonical_json",
        "finite_json",
        "locked",
        "open_lines",
        "open_regular",
        "parse_json",
        "read_bytes",
        "read_json",
        "read_json_or_none",
        "remove_unfinished_files",
        "sync_directory",
        "write_bytes",
        "write_json",
    ),
    "lineage": ("Lineage", "LineageEntry"),
    "manifest": (
        "FORMAT",
        "FORMAT_VERSION",
        "MANIFEST",
        "PACKED",
        "TRAIN",
        "ArrayEntry",
        "Manifest",
        "ObjectEntry",
        "SpreadHost",
        "checkpoint_state",
        "safe_relative",
    ),
    "metrics_rows": (
        "START_NUMBER",
        "both_nan",
        "difference_text",
        "parse_metrics",
        "relative_difference",
        "start_of",
    ),
    "ownership_chain": ("PUBLIC_KEY", "OwnershipChain", "OwnershipRecord"),
    "process_identity": ("ProcessIdentity", "boot_id", "has_ended", "identify", "is_running", "this_process"),
    "process_states": (
        "STARTING",
        "COMPILING",
        "RESTORING",
        "WAITING",
        "REPLAYING",
        "TRAINING",
        "SAVING",
        "ON_STANDBY",
        "STOPPING",
        "STOPPED",
        "FINISHED",
        "FAILED",
        "ENDED",
        "EXIT_DONE",
        "EXIT_FAILED",
        "EXIT_CONFIG",
        "EXIT_FENCED",
        "EXIT_SIGNAL",
    ),
    "process_status": ("Device", "ProcessExit", "Status"),
    "record": ("JsonRecord", "check_format"),
    "run_files": ("MigrationLock", "Pin", "Store"),
    "run_paths": (
        "AttemptPaths",
        "RunPaths",
        "attempt_name",
        "check_run_id",
        "checkpoint_name",
        "parse_checkpoint_name",
    ),
    "share": ("SHARE", "Share"),
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> object:
    """Load the module of a name.

    A program that reads one record does not wait for the classes of all.
    """
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value
