"""A slice is made, and whatever happens meanwhile, either it is ready or nothing of it is left.

Everything that is made here carries labels: the target's name, who asked, and a token of this one creation. Only what
has this token is taken away again when the creation fails; what a killed process leaves is found by the labels.
"""

from __future__ import annotations

import getpass
import re
import secrets
import threading
import time
from typing import TYPE_CHECKING, Any

from midstream.fleet.fleet import TpuTarget
from midstream.fleet.units import parse_duration
from midstream.hosts.providers import interface
from midstream.hosts.providers.google import nodes
from midstream.hosts.providers.google.client import CALL
from midstream.hosts.providers.google.errors import explained, translate
from midstream.hosts.providers.interface import Pauses, ProviderError, Say, Slice, words_for

if TYPE_CHECKING:
    from google.cloud.tpu_v2 import TpuClient

ASKED = 5  # times that a creation is asked for while the service does not answer
STEADY = 2  # looks in a row that have to find it ready: states flap
REPEAT = 60.0  # seconds after which an unchanged state is told again
UNDONE = 900.0  # seconds that taking away again may take
APPEARS = 5  # looks that have to find nothing before a creation without an answer counts as one without effect


def create(client: TpuClient, name: str, target: TpuTarget, say: Say, cancel: threading.Event | None = None) -> Slice:
    """The slice of ``target``, ready. One that is there already is waited for, or, where it was ours and is gone,
    replaced. ProviderError, with what is left and costs money, if anything could be."""
    node = target.name or name
    what, nothing = f"{name} cannot be created", "nothing was created, nothing costs money"
    try:
        there = nodes.find(client, target.project, target.zone, node)
    except ProviderError as error:
        raise ProviderError(f"{what}: {error.message}; {nothing}", error.hint, error.kind) from error
    if there is not None and there.standing in (interface.PREEMPTED, interface.FAILED):
        if not there.ours:
            raise ProviderError(
                f"{what}: {there.place} is {there.state}, and midstream did not make it; {nothing}",
                f"midstream --delete {there.place}, if nobody needs it",
                interface.EXISTS,
            )
        say(f"{there.place} is {there.state}: it is deleted first")
        try:
            delete(client, there, say)
        except ProviderError as error:
            left = f"what is left of {there.place} may cost money: midstream --delete {there.place}"
            raise ProviderError(f"{what}: {error.message}; {left}", error.hint, error.kind, left) from error
        there = None
    if there is not None:
        say(f"{there.place} is there already: {there.text()}")
    making = _Making(client, name, target, node, say, cancel, others=there is not None and not there.ours)
    try:
        if there is None:
            making.ask()
        return making.wait()
    except (Exception, KeyboardInterrupt) as error:
        raise _ended(making, what, error) from error


def _ended(making: _Making, what: str, error: BaseException) -> BaseException:
    """The error, with what became of what was begun."""
    from google.api_core.exceptions import GoogleAPICallError

    if isinstance(error, GoogleAPICallError):
        error = translate(what, error, making.target.project, making.target.zone)
    if isinstance(error, KeyboardInterrupt):
        error = ProviderError(f"{what}: interrupted", "", interface.CANCELLED)
    left, words = making.undo()
    if not isinstance(error, ProviderError):
        return error
    return ProviderError(f"{error.message}; {words}", error.hint, error.kind, left)


# How far a creation has come: refused outright, asked for without an answer, taken on.
NOTHING, MAYBE, BEGUN = range(3)


class _Making:
    """One creation. Where ``ask`` is not called, a slice that is there already is waited for, and never deleted."""

    def __init__(
        self,
        client: TpuClient,
        name: str,
        target: TpuTarget,
        node: str,
        say: Say,
        cancel: threading.Event | None,
        others: bool,
    ):
        self.client, self.name, self.target, self.node = client, name, target, node
        self.token, self.say, self.cancel = secrets.token_hex(6), say, cancel
        self.parent = f"projects/{target.project}/locations/{target.zone}"
        self.place = f"{target.project}/{target.zone}/{node}"
        self._begun: int | None = None  # NOTHING, MAYBE or BEGUN; None: it was there already
        self._others = others  # somebody else's, and none of our business
        self._operation: Any = None

    # ----------------------------------------------------------------------------------------------- asking for it

    def ask(self) -> None:
        """Until the service has taken it on. A call that is not answered may have had its effect: the label tells."""
        from google.api_core import exceptions

        silent = (exceptions.ServiceUnavailable, exceptions.GatewayTimeout, exceptions.InternalServerError)
        how = f"{self.target.price_class}, queued" if self.target.queued else self.target.price_class
        self._begun = before = NOTHING
        self.say(f"asking for {self.place}: {self.target.accelerator_type}, {how}")
        pauses = Pauses(cancel=self.cancel)
        for left in reversed(range(ASKED)):
            self._check_cancelled()
            try:
                self._begun = MAYBE
                self._operation = self._call()
                self._begun = BEGUN
                return
            except exceptions.AlreadyExists:
                found = nodes.find(self.client, self.target.project, self.target.zone, self.node)
                if found is None or found.labels.get(interface.TOKEN) != self.token:
                    self._begun = before
                    raise
                self._begun = BEGUN  # the call before had its effect
                return
            except exceptions.GoogleAPICallError as error:
                without_effect = not isinstance(error, silent)
                self._begun = before = before if without_effect else MAYBE
                if not left or (without_effect and not _too_many_calls(error)):
                    raise
                self.say(f"{self.place}: the service does not answer ({error.message}); asked again")
                pauses.next()

    def _call(self) -> Any:
        from google.cloud import tpu_v2

        node = node_message(self.name, self.target, self.token)
        if not self.target.queued:
            return self.client.create_node(parent=self.parent, node_id=self.node, node=node, timeout=CALL)
        spec = tpu_v2.QueuedResource.Tpu.NodeSpec(parent=self.parent, node_id=self.node, node=node)
        request = tpu_v2.QueuedResource(tpu=tpu_v2.QueuedResource.Tpu(node_spec=[spec]))
        if self.target.spot:
            request.spot = tpu_v2.QueuedResource.Spot()
        elif self.target.reserved or self.target.reservation:
            request.guaranteed = tpu_v2.QueuedResource.Guaranteed()
        if self.target.reservation:
            request.reservation_name = self.target.reservation
        bound = {"seconds": int(parse_duration(self.target.valid_until))}
        request.queueing_policy = tpu_v2.QueuedResource.QueueingPolicy(valid_until_duration=bound)
        return self.client.create_queued_resource(
            parent=self.parent, queued_resource_id=self.node, queued_resource=request, timeout=CALL
        )

    # ------------------------------------------------------------------------------------------------ waiting for it

    def wait(self) -> Slice:
        """Until it has been ready for some looks in a row. Raises what the operation ended with."""
        limit = parse_duration(self.target.valid_until)
        began, told, words, steady = time.monotonic(), 0.0, "", 0
        pauses = Pauses(cancel=self.cancel)
        while True:
            self._check_cancelled()
            self._check_operation()
            found = nodes.find(self.client, self.target.project, self.target.zone, self.node)
            standing = interface.COMING if found is None else found.standing
            steady = steady + 1 if standing == interface.READY and found is not None and found.workers else 0
            if steady >= STEADY and found is not None:
                self.say(f"{self.place} is ready: {len(found.workers)} workers")
                return found
            waited = time.monotonic() - began
            if found is None and self._operation is None and waited > CALL:
                raise ProviderError(f"{self.name} cannot be created: {self.place} is gone", "", interface.ABSENT)
            if found is not None and standing in (interface.PREEMPTED, interface.FAILED):
                kind = interface.PREEMPTED if found.state in ("PREEMPTED", "SUSPENDED") else interface.STOCKOUT
                why = f": {found.why}" if found.why else ""
                raise ProviderError(f"{self.name} was {found.state} before it was ready{why}", "try again later", kind)
            if waited > limit:
                raise ProviderError(
                    f"{self.name} was not ready within {words_for(limit)}",
                    f"valid_until: of {self.name} in the fleet file: longer; queued: true keeps its place in a queue",
                    interface.LATE,
                )
            now = found.text() if found is not None else "asked for"
            if now != words or time.monotonic() - told > REPEAT:
                self.say(f"{self.place}: {now} ({words_for(waited)})")
                words, told = now, time.monotonic()
            pauses.next()

    def _check_cancelled(self) -> None:
        if self.cancel is not None and self.cancel.is_set():
            raise ProviderError(f"the creation of {self.name} was cancelled", "", interface.CANCELLED)

    def _check_operation(self) -> None:
        """Raises what the operation ended with, where that is an error. A look that fails says nothing."""
        from google.api_core import exceptions

        if self._operation is None:
            return
        try:
            if self._operation.done():
                error = self._operation.exception(timeout=CALL)
                if error is not None:
                    raise error
        except (exceptions.ServiceUnavailable, exceptions.GatewayTimeout) as error:
            if getattr(error, "response", None) is not None:  # the operation's own end, not this look's
                raise

    # ------------------------------------------------------------------------------------------------- and back

    def undo(self) -> tuple[str, str]:
        """Take away what this creation made. What may be left and costs money, empty where nothing is; and what
        became of it, both in words."""
        if self._begun is None and self._others:
            return "", f"{self.place} was there already and is left as it is"
        if self._begun is None:
            words = f"{self.place} was asked for earlier and is left as it is: midstream --delete {self.place}"
            return words, words
        nothing = "nothing was created, nothing costs money"
        if self._begun == NOTHING:
            return "", nothing
        try:
            gone = self._take_away()
        except (ProviderError, KeyboardInterrupt) as error:
            why = str(error) or "interrupted"
            words = (
                f"{self.place} MAY STILL BE THERE AND COST MONEY ({why}): midstream --delete {self.place}, or gcloud "
                f"compute tpus tpu-vm delete {self.node} --zone={self.target.zone} --project={self.target.project}"
            )
            return words, words
        return "", "what was begun is deleted, nothing costs money" if gone else nothing

    def _take_away(self) -> bool:
        """Whether there was anything. Looked for several times where no answer came."""
        looks, pauses = 1 if self._begun == BEGUN else APPEARS, Pauses()
        for look in range(looks):
            found = nodes.find(self.client, self.target.project, self.target.zone, self.node)
            if found is not None:
                if found.labels.get(interface.TOKEN) != self.token:
                    return False  # another's, of the same name
                delete(self.client, found, self.say)
                return True
            if look + 1 < looks:
                pauses.next()
        return self._begun == BEGUN


def _too_many_calls(error: Any) -> bool:
    """A limit on calls, which passes; other limits are on what was asked for."""
    return error.code == 429 and "per minute" in str(error).lower()


def delete(client: TpuClient, found: Slice, say: Say) -> None:
    """Delete node and request, and wait until neither is there. ProviderError where they stay."""
    from google.api_core import exceptions

    deadline, asked = time.monotonic() + UNDONE, False
    pauses = Pauses()
    parent = f"projects/{found.project}/locations/{found.zone}"
    refused: Exception | None = None
    while True:
        now = nodes.find(client, found.project, found.zone, found.name)
        if now is None:
            say(f"{found.place} is deleted")
            return
        if not asked or "DELETING" not in (now.state, now.queued):
            try:
                if now.request:
                    client.delete_queued_resource(request={"name": now.request, "force": True}, timeout=CALL)
                else:
                    client.delete_node(name=f"{parent}/nodes/{found.name}", timeout=CALL)
                if not asked:
                    say(f"{found.place}: it is being deleted")
                asked, refused = True, None
            except exceptions.NotFound:
                asked = True
            except (exceptions.Forbidden, exceptions.Unauthenticated, exceptions.InvalidArgument) as error:
                raise translate(f"{found.place} cannot be deleted", error, found.project, found.zone) from error
            except exceptions.GoogleAPICallError as error:
                refused = error  # busy with its creation, or not answering: asked again
        if time.monotonic() > deadline:
            why = f": {refused}" if refused else ""
            raise ProviderError(f"{found.place} is still there after {words_for(UNDONE)}{why}", "", interface.LATE)
        with explained(f"{found.place} cannot be deleted", found.project, found.zone):
            pauses.next()


def node_message(name: str, target: TpuTarget, token: str) -> Any:
    """What is asked for."""
    from google.cloud import tpu_v2

    node = tpu_v2.Node(
        runtime_version=target.runtime_version,
        labels={interface.OURS: label(name), interface.TOKEN: token, interface.MAKER: label(getpass.getuser())},
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
                interface.INVALID,
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
    """As a label's value may be: lower case letters, digits, `-` and `_`, 63 at most."""
    return re.sub(r"[^a-z0-9_-]", "-", text.lower())[:63]
