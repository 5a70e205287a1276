"""The text of a chain of ownership records, as a host reports it."""

from __future__ import annotations

import json

from midstream_core import records


def chain_text(chain: records.OwnershipChain) -> str:
    """Return the JSON text of a chain."""
    return json.dumps(chain.to_json(), separators=(",", ":"))
