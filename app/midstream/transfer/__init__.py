"""Copy trees of objects between hosts, hashed while they flow and verified at the far end."""

from midstream.hosts.programs import Cancelled
from midstream.stores.access import Access
from midstream.transfer.copy import copy_objects, copy_tree
from midstream.transfer.errors import TransferError
from midstream.transfer.feed import Feed
from midstream.transfer.history import copy_history
from midstream.transfer.model import CopyReport, HistoryReport, Progress, VerifyReport
from midstream.transfer.places import Place, bucket_place
from midstream.transfer.route import Link, probe
from midstream.transfer.settings import CopySettings
from midstream.transfer.spread import collect_objects, fan_out
from midstream.transfer.verify import verify_objects

__all__ = [
    "Access",
    "Cancelled",
    "CopyReport",
    "CopySettings",
    "Feed",
    "HistoryReport",
    "Link",
    "Place",
    "Progress",
    "TransferError",
    "VerifyReport",
    "bucket_place",
    "collect_objects",
    "copy_history",
    "copy_objects",
    "copy_tree",
    "fan_out",
    "probe",
    "verify_objects",
]
