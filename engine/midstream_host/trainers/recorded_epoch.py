"""Epoch of a recorded checkpoint, of a trainer that stores one.

Standard library only; runs on the host.
"""

from __future__ import annotations

import posixpath
from typing import Any, Dict, Optional, cast

from midstream_core import records
from midstream_host.declarations import reads
from midstream_host.driver.checkpoints.checkpoint_finder import RULES
from midstream_host.driver.checkpoints.rule import RecordedEpoch
from midstream_host.driver.recorded_checkpoints import FILES


@reads()
def recorded_epoch(root: str, run_id: str, checkpoint: str) -> Optional[RecordedEpoch]:
    """Return the epoch of a recorded checkpoint; None for a trainer that stores none.

    Raises RecordError, OSError.
    """
    place = records.RunPaths(root, records.check_run_id(run_id)).checkpoint(checkpoint)
    path = posixpath.join(place, records.TRAIN)
    value: Any = records.read_json(path).get("state", {})
    state = cast("Dict[str, Any]", value) if isinstance(value, dict) else {}
    rule = RULES.get(str(state.get("rule", "")))
    if rule is None or rule.epoch is None:
        return None
    return rule.epoch(posixpath.join(place, FILES, str(state.get("path", ""))))
