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
    from midstream_core.records.command import *
    from midstream_core.records.digests import *
    from midstream_core.records.errors import *
    from midstream_core.records.evidence import *
    from midstream_core.records.fence import *
    from midstream_core.records.field_forms import *
    from midstream_core.records.files import *
    from midstream_core.records.lineage import *
    from midstream_core.records.manifest import *
    from midstream_core.records.metrics_rows import *
    from midstream_core.records.ownership_chain import *
    from midstream_core.records.process_identity import *
    from midstream_core.records.process_states import *
    from midstream_core.records.process_status import *
    from midstream_core.records.record import *
    from midstream_core.records.run_files import *
    from midstream_core.records.run_paths import *
    from midstream_core.records.share import *

_NAMES = {  # module -> its names; a module is loaded with the first use of one of them
    "command": "Command PROMOTE REPLAY RESTORE SAVE STANDBY STANDBYS STARTS STOP TAKEOVERS",
    "digests": "batch_digest crc32c_base64 data_digests IMPORTED root_digest tokenizer_digests",
    "errors": "DamagedRecordError NewerFormatError RecordError",
    "evidence": "ParameterDrift Restore ShardDrift TrainerEvidence",
    "fence": "ClosedStart Fence first_fence Seal",
    "field_forms": "CHECKPOINT_NAME DIGEST DIGEST_OR_EMPTY DTYPE NAME RUN_ID RUN_ID_OR_EMPTY",
    "files": "append_line canonical_json finite_json locked MAX_FILE open_lines open_regular parse_json read_bytes "
    "read_json read_json_or_none remove_unfinished_files sync_directory write_bytes write_json",
    "lineage": "Lineage LineageEntry",
    "manifest": "ArrayEntry checkpoint_state FORMAT FORMAT_VERSION MANIFEST Manifest ObjectEntry PACKED safe_relative "
    "SpreadHost TRAIN",
    "metrics_rows": "both_nan difference_text parse_metrics relative_difference START_NUMBER start_of",
    "ownership_chain": "OwnershipChain OwnershipRecord PUBLIC_KEY",
    "process_identity": "boot_id has_ended identify is_running ProcessIdentity this_process",
    "process_states": "STARTING COMPILING RESTORING WAITING REPLAYING TRAINING SAVING ON_STANDBY STOPPING STOPPED "
    "FINISHED FAILED ENDED EXIT_DONE EXIT_FAILED EXIT_CONFIG EXIT_FENCED EXIT_SIGNAL",
    "process_status": "Device ProcessExit Status",
    "record": "check_format JsonRecord",
    "run_files": "MigrationLock Pin Store",
    "run_paths": "attempt_name AttemptPaths check_run_id checkpoint_name parse_checkpoint_name RunPaths",
    "share": "SHARE Share",
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    """Load the module of a name.

    A program that reads one record does not wait for the classes of all.
    """
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value
