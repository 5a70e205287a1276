"""Copy trees of objects between hosts, hashed while they flow and verified at the far end."""

from midstream.hosts.programs import Cancelled
from midstream.transfer.copy import copy_objects
from midstream.transfer.errors import TransferError
from midstream.transfer.history import copy_history
from midstream.transfer.model import CopyReport, HistoryReport, Progress, VerifyReport
from midstream.transfer.verify import verify_objects

__all__ = [
    "Cancelled",
    "CopyReport",
    "HistoryReport",
    "Progress",
    "TransferError",
    "VerifyReport",
    "copy_history",
    "copy_objects",
    "verify_objects",
]
