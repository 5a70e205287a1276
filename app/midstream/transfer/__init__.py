"""Copies of object trees between hosts, hashed in transit, verified at the target."""

from midstream.hosts.rpc.remote_program import Cancelled
from midstream.stores.bucket_access import Access
from midstream.transfer.copy.copy_history import copy_history
from midstream.transfer.copy.copy_tree import copy_tree
from midstream.transfer.copy.incremental_copy import IncrementalCopy
from midstream.transfer.copy.multi_host_copy import collect_objects, fan_out
from midstream.transfer.copy_settings import CopySettings
from midstream.transfer.endpoint import Endpoint, bucket_endpoint
from midstream.transfer.errors import TransferError
from midstream.transfer.report import CopyReport, HistoryReport, Progress, VerifyReport
from midstream.transfer.streams.link import Link, probe
from midstream.transfer.verify.verify_tree import verify_objects

__all__ = [
    "Access",
    "Cancelled",
    "CopyReport",
    "CopySettings",
    "Endpoint",
    "HistoryReport",
    "IncrementalCopy",
    "Link",
    "Progress",
    "TransferError",
    "VerifyReport",
    "bucket_endpoint",
    "collect_objects",
    "copy_history",
    "copy_tree",
    "fan_out",
    "probe",
    "verify_objects",
]
