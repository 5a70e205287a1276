"""The text of a chain of ownership records, as a host reports it."""

from __future__ import annotations

import json

from midstream_core import records


def chain_text(chain: records.OwnershipChain | None) -> str:
    """Return the JSON text of a chain; empty without one."""
    return "" if chain is None else json.dumps(chain.to_json(), separators=(",", ":"))
