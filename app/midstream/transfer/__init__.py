"""Copy trees of objects between hosts, hashed while they flow and verified at the far end."""

from midstream.hosts.rpc.remote_program import Cancelled
from midstream.stores.bucket_access import Access
from midstream.transfer.copy_history import copy_history
from midstream.transfer.copy_settings import CopySettings
from midstream.transfer.copy_tree import copy_objects, copy_tree
from midstream.transfer.endpoint import Endpoint, bucket_endpoint
from midstream.transfer.errors import TransferError
from midstream.transfer.incremental_copy import Feed
from midstream.transfer.multi_host import collect_objects, fan_out
from midstream.transfer.report import CopyReport, HistoryReport, Progress, VerifyReport
from midstream.transfer.route import Link, probe
from midstream.transfer.verify_tree import verify_objects

__all__ = [
    "Access",
    "Cancelled",
    "CopyReport",
    "CopySettings",
    "Endpoint",
    "Feed",
    "HistoryReport",
    "Link",
    "Progress",
    "TransferError",
    "VerifyReport",
    "bucket_endpoint",
    "collect_objects",
    "copy_history",
    "copy_objects",
    "copy_tree",
    "fan_out",
    "probe",
    "verify_objects",
]
