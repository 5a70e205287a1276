"""Spot notices of AWS, from the metadata service of EC2 (IMDSv2).

Standard library only; also sent to hosts.

A spot machine's ``spot/instance-action`` exists from 2 minutes before the machine is stopped or terminated.
``AWS_EC2_METADATA_SERVICE_ENDPOINT`` and ``AWS_EC2_METADATA_DISABLED`` are variables of AWS's own programs.

https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
"""

from __future__ import annotations

import json
import os

from midstream_core.json_types import object_or_empty
from midstream_core.metadata_request import metadata_answer

VARIABLE, DISABLED = "AWS_EC2_METADATA_SERVICE_ENDPOINT", "AWS_EC2_METADATA_DISABLED"
ADDRESS = "http://169.254.169.254"
VENDOR = "/sys/class/dmi/id/sys_vendor"
TOKEN_SECONDS = 300
MAX_ANSWER = 10000  # bytes
ACTIONS = ("terminate", "stop", "hibernate")


def metadata_address(vendor: str = VENDOR) -> str:
    """Return the service's address; empty on a machine that is not AWS's."""
    if os.environ.get(DISABLED, "").lower() == "true":
        return ""
    named = os.environ.get(VARIABLE, "")
    if named:
        return named.rstrip("/")
    try:
        with open(vendor, encoding="utf-8", errors="replace") as file:
            return ADDRESS if "Amazon EC2" in file.read(200) else ""
    except OSError:
        return ""


def notices(address: str) -> list[str] | None:
    """Return the notices that are in force.

    None where they cannot be read, which proves nothing.
    """
    lifetime = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_SECONDS)}
    status, token = metadata_answer(f"{address}/latest/api/token", lifetime, MAX_ANSWER, "PUT")
    if status != 200:
        return None
    url = f"{address}/latest/meta-data/spot/instance-action"
    status, answer = metadata_answer(url, {"X-aws-ec2-metadata-token": token}, MAX_ANSWER)
    if status == 404:
        return []
    try:
        value = object_or_empty(json.loads(answer))
    except ValueError:
        return None
    if value.get("action") not in ACTIONS:
        return None
    return ["spot {} at {}".format(value["action"], str(value.get("time", ""))[:40])]
