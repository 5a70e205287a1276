"""Create and delete slices. A creation either ends with a ready slice, or leaves nothing that costs money.

Every resource that is created here carries labels: the target's name, the user, and a token of this creation. A failed
creation deletes only resources with its own token. The labels identify what a killed process has left over.
"""

from __future__ import annotations

import getpass
import re
import secrets
import threading
import time
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

from midstream.counts import count
from midstream.fleet.fleet import TpuTarget
from midstream.fleet.quantities import parse_duration
from midstream.hosts.providers.google import slice_lookup
from midstream.hosts.providers.google.api_errors import explained, translate
from midstream.hosts.providers.google.tpu_client import CALL_TIMEOUT
from midstream.hosts.providers.provider import (
    OWNER_LABEL,
    TARGET_LABEL,
    TOKEN_LABEL,
    ErrorKind,
    Polling,
    Progress,
    ProviderError,
    Slice,
    SliceStatus,
    format_duration,
)

if TYPE_CHECKING:
    from google.cloud.tpu_v2 import TpuClient

MAX_CREATE_CALLS = 5  # while the service does not answer
READY_POLLS = 2  # consecutive polls that have to report it ready: states flap
NOT_FOUND_POLLS = 5  # consecutive polls that find nothing before an unanswered call counts as without effect
REPORT_INTERVAL = 60.0  # seconds after which an unchanged state is reported again
DELETE_TIMEOUT = 900.0  # seconds


class _Progress(Enum):
    """Progress of a creation that this program requested."""

    NOT_STARTED = auto()  # a slice existed already
    REFUSED = auto()  # no call had an effect
    UNANSWERED = auto()  # a call may have had an effect
    STARTED = auto()


def create(
    client: TpuClient, name: str, target: TpuTarget, progress: Progress, cancel: threading.Event | None = None
) -> Slice:
    """Create the slice of ``target`` and wait until it is ready.

    If the slice exists, this waits for it; a preempted or failed slice of ours is replaced.

    Args:
        client: Client of the TPU API.
        name: Name of the target in the fleet file.
        target: The target.
        progress: Gets lines of progress.
        cancel: Ends the creation once it is set.

    Raises:
        ProviderError: The creation failed; ``costs`` names what may be left over and cost money.
    """
    node = target.name or name
    failure, nothing = f"{name} cannot be created", "nothing was created, nothing costs money"
    try:
        found = slice_lookup.find(client, target.project, target.zone, node)
    except ProviderError as error:
        raise ProviderError(f"{failure}: {error.message}; {nothing}", error.hint, error.kind) from error
    if found is not None and found.status in (SliceStatus.PREEMPTED, SliceStatus.FAILED):
        if not found.ours:
            raise ProviderError(
                f"{failure}: {found.path} is {found.state}, and midstream did not create it; {nothing}",
                f"midstream --delete {found.path}, if nobody needs it",
                ErrorKind.EXISTS,
            )
        progress(f"{found.path} is {found.state}: it is deleted first")
        try:
            delete(client, found, progress)
        except ProviderError as error:
            left = f"what is left of {found.path} may cost money: midstream --delete {found.path}"
            raise ProviderError(f"{failure}: {error.message}; {left}", error.hint, error.kind, left) from error
        found = None
    if found is not None:
        progress(f"{found.path} exists: {found.text()}")
    creation = _Creation(client, name, target, progress, cancel, foreign=found is not None and not found.ours)
    try:
        if found is None:
            creation.request()
        return creation.wait()
    except (Exception, KeyboardInterrupt) as error:
        raise _after_undo(creation, failure, error) from error


def _after_undo(creation: _Creation, failure: str, error: BaseException) -> BaseException:
    """Undo the creation, and return its error with the result of that."""
    from google.api_core.exceptions import GoogleAPICallError

    if isinstance(error, GoogleAPICallError):
        error = translate(failure, error, creation.target.project, creation.target.zone)
    if isinstance(error, KeyboardInterrupt):
        error = ProviderError(f"{failure}: interrupted", "", ErrorKind.CANCELLED)
    left, words = creation.undo()
    if not isinstance(error, ProviderError):
        return error
    return ProviderError(f"{error.message}; {words}", error.hint, error.kind, left)


class _Creation:
    """One creation. Without a call of ``request``, it waits for a slice that exists, and never deletes it."""

    def __init__(
        self,
        client: TpuClient,
        name: str,
        target: TpuTarget,
        progress: Progress,
        cancel: threading.Event | None,
        *,
        foreign: bool,
    ) -> None:
        self.client, self.name, self.target, self.node = client, name, target, target.name or name
        self.token, self.report, self.cancel = secrets.token_hex(6), progress, cancel
        self.parent = f"projects/{target.project}/locations/{target.zone}"
        self.path = f"{target.project}/{target.zone}/{self.node}"
        self._progress = _Progress.NOT_STARTED
        self._foreign = foreign  # a slice exists that midstream did not create
        self._operation: Any = None

    def _find(self) -> Slice | None:
        return slice_lookup.find(self.client, self.target.project, self.target.zone, self.node)

    # ------------------------------------------------------------------------------------------------ request

    def request(self) -> None:
        """Call the service until it has started the creation.

        A call without an answer may have had its effect: the slice's token shows that.
        """
        from google.api_core import exceptions

        unanswered = (exceptions.ServiceUnavailable, exceptions.GatewayTimeout, exceptions.InternalServerError)
        how = f"{self.target.price_class}, queued" if self.target.queued else self.target.price_class
        self._progress = before = _Progress.REFUSED
        self.report(f"requesting {self.path}: {self.target.accelerator_type}, {how}")
        polling = Polling(cancel=self.cancel)
        for calls_left in reversed(range(MAX_CREATE_CALLS)):
            self._check_cancelled()
            try:
                self._progress = _Progress.UNANSWERED
                self._operation = self._call()
                self._progress = _Progress.STARTED
                return
            except exceptions.AlreadyExists:
                found = self._find()
                if found is None or found.labels.get(TOKEN_LABEL) != self.token:
                    self._progress = before
                    raise
                self._progress = _Progress.STARTED  # by the previous call
                return
            except exceptions.GoogleAPICallError as error:
                without_effect = not isinstance(error, unanswered)
                self._progress = before = before if without_effect else _Progress.UNANSWERED
                if not calls_left or (without_effect and not _is_rate_limit(error)):
                    raise
                self.report(f"{self.path}: the service does not answer ({error.message}); trying again")
                polling.wait()

    def _call(self) -> Any:
        from google.cloud import tpu_v2

        node = node_message(self.name, self.target, self.token)
        if not self.target.queued:
            return self.client.create_node(parent=self.parent, node_id=self.node, node=node, timeout=CALL_TIMEOUT)
        spec = tpu_v2.QueuedResource.Tpu.NodeSpec(parent=self.parent, node_id=self.node, node=node)
        request = tpu_v2.QueuedResource(tpu=tpu_v2.QueuedResource.Tpu(node_spec=[spec]))
        if self.target.spot:
            request.spot = tpu_v2.QueuedResource.Spot()
        elif self.target.reserved or self.target.reservation:
            request.guaranteed = tpu_v2.QueuedResource.Guaranteed()
        if self.target.reservation:
            request.reservation_name = self.target.reservation
        limit = {"seconds": int(parse_duration(self.target.valid_until))}
        request.queueing_policy = tpu_v2.QueuedResource.QueueingPolicy(valid_until_duration=limit)
        return self.client.create_queued_resource(
            parent=self.parent, queued_resource_id=self.node, queued_resource=request, timeout=CALL_TIMEOUT
        )

    # --------------------------------------------------------------------------------------------------- wait

    def wait(self) -> Slice:
        """Wait until the slice has been ready for `READY_POLLS` polls. Raises the operation's error."""
        limit = parse_duration(self.target.valid_until)
        began, reported_at, reported, ready_polls = time.monotonic(), 0.0, "", 0
        polling = Polling(cancel=self.cancel)
        while True:
            self._check_cancelled()
            self._check_operation()
            found = self._find()
            ready = found is not None and found.status == SliceStatus.READY and bool(found.workers)
            ready_polls = ready_polls + 1 if ready else 0
            if found is not None and ready_polls >= READY_POLLS:
                self.report(f"{self.path} is ready: {count(len(found.workers), 'worker')}")
                return found
            waited = time.monotonic() - began
            self._check_found(found, waited, limit)
            now = found.text() if found is not None else "requested"
            if now != reported or time.monotonic() - reported_at > REPORT_INTERVAL:
                self.report(f"{self.path}: {now} ({format_duration(waited)})")
                reported, reported_at = now, time.monotonic()
            polling.wait()

    def _check_found(self, found: Slice | None, waited: float, limit: float) -> None:
        """Raise ProviderError if the slice cannot become ready any more, or ``limit`` seconds have passed."""
        if found is None and self._operation is None and waited > CALL_TIMEOUT:
            raise ProviderError(f"{self.name} cannot be created: {self.path} no longer exists", "", ErrorKind.NOT_FOUND)
        if found is not None and found.status in (SliceStatus.PREEMPTED, SliceStatus.FAILED):
            kind = ErrorKind.PREEMPTED if found.state in ("PREEMPTED", "SUSPENDED") else ErrorKind.STOCKOUT
            why = f": {found.why}" if found.why else ""
            raise ProviderError(f"{self.name} was {found.state} before it was ready{why}", "try again later", kind)
        if waited > limit:
            raise ProviderError(
                f"{self.name} was not ready within {format_duration(limit)}",
                f"a longer valid_until: of {self.name} in the fleet file; queued: true keeps its place in a queue",
                ErrorKind.TIMEOUT,
            )

    def _check_cancelled(self) -> None:
        if self.cancel is not None and self.cancel.is_set():
            raise ProviderError(f"the creation of {self.name} was cancelled", "", ErrorKind.CANCELLED)

    def _check_operation(self) -> None:
        """Raise the operation's error, if it ended with one. A failed poll is no evidence."""
        from google.api_core import exceptions

        if self._operation is None:
            return
        try:
            if self._operation.done():
                error = self._operation.exception(timeout=CALL_TIMEOUT)
                if error is not None:
                    raise error
        except (exceptions.ServiceUnavailable, exceptions.GatewayTimeout) as error:
            if getattr(error, "response", None) is not None:  # the operation's own error, not this poll's
                raise

    # --------------------------------------------------------------------------------------------------- undo

    def undo(self) -> tuple[str, str]:
        """Delete what this creation has created.

        Returns what may be left over and cost money (empty if nothing is), and the result in words.
        """
        if self._progress == _Progress.NOT_STARTED and self._foreign:
            return "", f"{self.path} existed before and is not changed"
        if self._progress == _Progress.NOT_STARTED:
            words = f"{self.path} was requested earlier and is not changed: midstream --delete {self.path}"
            return words, words
        nothing = "nothing was created, nothing costs money"
        if self._progress == _Progress.REFUSED:
            return "", nothing
        try:
            deleted = self._delete_own()
        except (ProviderError, KeyboardInterrupt) as error:
            why = str(error) or "interrupted"
            words = (
                f"{self.path} MAY STILL EXIST AND COST MONEY ({why}): midstream --delete {self.path}, or gcloud "
                f"compute tpus tpu-vm delete {self.node} --zone={self.target.zone} --project={self.target.project}"
            )
            return words, words
        return "", "what was created is deleted, nothing costs money" if deleted else nothing

    def _delete_own(self) -> bool:
        """Delete the slice with our token. False if there was none; after an unanswered call that takes some polls."""
        polls, polling = 1 if self._progress == _Progress.STARTED else NOT_FOUND_POLLS, Polling()
        for poll in range(polls):
            found = self._find()
            if found is not None:
                if found.labels.get(TOKEN_LABEL) != self.token:
                    return False  # another slice of the same name
                delete(self.client, found, self.report)
                return True
            if poll + 1 < polls:
                polling.wait()
        return self._progress == _Progress.STARTED


def _is_rate_limit(error: Any) -> bool:
    """True for a limit on calls, which passes; other limits concern the requested resources."""
    return error.code == 429 and "per minute" in str(error).lower()


def delete(client: TpuClient, found: Slice, progress: Progress) -> None:
    """Delete a slice's node and request, and wait until neither exists. Raises ProviderError if one remains."""
    from google.api_core import exceptions

    deadline, requested = time.monotonic() + DELETE_TIMEOUT, False
    polling = Polling()
    parent = f"projects/{found.project}/locations/{found.zone}"
    refused: Exception | None = None
    while True:
        now = slice_lookup.find(client, found.project, found.zone, found.name)
        if now is None:
            progress(f"{found.path} is deleted")
            return
        if not requested or "DELETING" not in (now.state, now.queued):
            try:
                if now.request:
                    client.delete_queued_resource(request={"name": now.request, "force": True}, timeout=CALL_TIMEOUT)
                else:
                    client.delete_node(name=f"{parent}/nodes/{found.name}", timeout=CALL_TIMEOUT)
                if not requested:
                    progress(f"{found.path}: it is being deleted")
                requested, refused = True, None
            except exceptions.NotFound:
                requested = True
            except (exceptions.Forbidden, exceptions.Unauthenticated, exceptions.InvalidArgument) as error:
                raise translate(f"{found.path} cannot be deleted", error, found.project, found.zone) from error
            except exceptions.GoogleAPICallError as error:
                refused = error  # busy with its creation, or not answering: tried again
        if time.monotonic() > deadline:
            why = f": {refused}" if refused else ""
            raise ProviderError(
                f"{found.path} still exists after {format_duration(DELETE_TIMEOUT)}{why}", "", ErrorKind.TIMEOUT
            )
        with explained(f"{found.path} cannot be deleted", found.project, found.zone):
            polling.wait()


def node_message(name: str, target: TpuTarget, token: str) -> Any:
    """Return the node that a creation requests."""
    from google.cloud import tpu_v2

    node = tpu_v2.Node(
        runtime_version=target.runtime_version,
        labels={TARGET_LABEL: label(name), TOKEN_LABEL: token, OWNER_LABEL: label(getpass.getuser())},
        metadata={"enable-guest-attributes": "TRUE", **({"enable-oslogin": "TRUE"} if target.os_login else {})},
        network_config=tpu_v2.NetworkConfig(
            network=target.network or "",
            subnetwork=target.subnetwork or "",
            enable_external_ips=target.reach == "external",
        ),
    )
    if target.topology:
        kinds = tpu_v2.AcceleratorConfig.Type.__members__
        kind = {"v5e": "V5LITE_POD", "v5litepod": "V5LITE_POD"}.get(
            target.accelerator_type, target.accelerator_type.upper()
        )
        if kind not in kinds:
            raise ProviderError(
                f"{name}: with a topology, accelerator_type is a generation, not {target.accelerator_type!r}",
                f"one of {', '.join(sorted(kinds)[:-1]).lower()}",
                ErrorKind.INVALID,
            )
        node.accelerator_config = tpu_v2.AcceleratorConfig(type_=kinds[kind], topology=target.topology)
    else:
        node.accelerator_type = target.accelerator_type
    if not target.queued:
        node.scheduling_config = tpu_v2.SchedulingConfig(
            spot=target.spot, reserved=bool(target.reserved or target.reservation)
        )
    if target.service_account:
        scope = ["https://www.googleapis.com/auth/cloud-platform"]
        node.service_account = tpu_v2.ServiceAccount(email=target.service_account, scope=scope)
    return node


def label(text: str) -> str:
    """Return the text as a valid label value: lower case letters, digits, `-` and `_`, at most 63 characters."""
    return re.sub(r"[^a-z0-9_-]", "-", text.lower())[:63]
