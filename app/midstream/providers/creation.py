"""Creation of a slice, for every provider: a ready slice, or no costs left.

Every resource of a creation carries labels: the target's name, the user, and a token of this creation. A failed one
deletes only resources with its own token. The labels identify what a killed process has left over.

A look that fails is no evidence about the slice: a creation waits on, until its time is over and a look has succeeded.
"""

from __future__ import annotations

import secrets
import threading
from enum import Enum, auto

from midstream.counts import count
from midstream.format import duration
from midstream.providers import deletion, slice_service
from midstream.providers.provider import TOKEN_LABEL, ErrorKind, Polling, Progress, ProviderError, Slice, SliceStatus
from midstream.providers.slice_service import Service

MAX_START_CALLS = 5  # while the service does not answer
READY_POLLS = 2  # consecutive polls that have to report it ready: states flap
NOT_FOUND_POLLS = 5  # consecutive polls that find nothing before an unanswered call counts as without effect
NOT_FOUND_TIME = 30.0  # seconds that a slice that was requested may not be listed
REPORT_INTERVAL = 60.0  # seconds after which an unchanged state is reported again
UNANSWERED_TIME = 900.0  # seconds awake without an answer, after which a creation whose time is over is ended
GRANTED_TIME = 900.0  # seconds that machines may take after a queue has granted them


class _CreationStage(Enum):
    """Progress of a creation that this program requested."""

    NOT_STARTED = auto()  # a slice existed already
    REFUSED = auto()  # no call had an effect
    UNANSWERED = auto()  # a call may have had an effect
    STARTED = auto()


def create(
    service: Service, name: str, limit: float, progress: Progress, cancel: threading.Event | None = None
) -> Slice:
    """Create a slice and wait until it is ready.

    If the slice exists, this waits for it; a preempted or failed slice of ours is replaced, and one that its owner has
    stopped is not.

    Args:
        service: The slice at its service.
        name: Name of the target in the fleet file.
        limit: Seconds that it may take; time in which this machine sleeps counts.
        progress: Gets lines of progress.
        cancel: Ends the creation once it is set.

    Raises:
        ProviderError: The creation failed; ``costs`` names what may be left over and cost money.
    """
    failure, nothing = f"{name} cannot be created", "nothing was created, nothing costs money"
    try:
        slice_ = slice_service.find_patiently(service.find)
    except ProviderError as error:
        raise ProviderError(f"{failure}: {error.message}; {nothing}", error.hint, error.kind) from error
    if slice_ is not None and slice_.status in (SliceStatus.PREEMPTED, SliceStatus.FAILED):
        if not slice_.ours:
            raise ProviderError(
                f"{failure}: {slice_.path} is {slice_.state}, and midstream did not create it; {nothing}",
                f"midstream --delete {slice_.path}, if it is not needed",
                ErrorKind.EXISTS,
            )
        if slice_.stopped:
            raise ProviderError(
                f"{failure}: {slice_.path} is {slice_.state}, and a new one would replace its disks; {nothing}",
                f"start it again; or midstream --delete {slice_.path}, if nothing on its disks is needed",
                ErrorKind.EXISTS,
            )
        progress(f"{slice_.path} is {slice_.state}: it is deleted first")
        try:
            deletion.delete(service, slice_, progress)
        except ProviderError as error:
            remains = f"what is left of {slice_.path} may cost money: midstream --delete {slice_.path}"
            raise ProviderError(f"{failure}: {error.message}; {remains}", error.hint, error.kind, remains) from error
        slice_ = None
    if slice_ is not None:
        progress(f"{slice_.path} exists: {slice_.text()}")
    creation = _Creation(service, name, limit, progress, cancel, foreign=slice_ is not None and not slice_.ours)
    try:
        if slice_ is None:
            creation.request()
        return creation.wait()
    except (Exception, KeyboardInterrupt) as error:
        raise _after_undo(creation, failure, error) from error


def _after_undo(creation: _Creation, failure: str, error: BaseException) -> BaseException:
    """Undo the creation, and return its error with the result of that."""
    if isinstance(error, KeyboardInterrupt):
        error = ProviderError(f"{failure}: interrupted", "", ErrorKind.CANCELLED)
    remains, words = creation.undo()
    if not isinstance(error, ProviderError):
        return error
    return ProviderError(f"{error.message}; {words}", error.hint, error.kind, remains)


class _Creation:
    """One creation of a slice.

    Without a call of ``request``, it waits for a slice that exists, and never deletes it.
    """

    def __init__(
        self,
        service: Service,
        name: str,
        limit: float,
        progress: Progress,
        cancel: threading.Event | None,
        *,
        foreign: bool,
    ) -> None:
        self.service, self.name, self.path, self.limit = service, name, service.path, limit
        self.token, self.report, self.cancel = secrets.token_hex(6), progress, cancel
        self._began = slice_service.clock()
        self._stage = _CreationStage.NOT_STARTED
        self._foreign = foreign  # a slice exists that midstream did not create
        self._unanswered = ""  # the last look's error, if it failed
        self._unanswered_since = 0.0  # when the looks began to fail
        self._seen = self._began  # when a look last found the slice
        self._listed = False  # whether a look has found it
        self._requested = self._began  # when the service was last called to create it
        self._failed = False  # whether the request ended with an error of its own

    def _waited(self) -> float:
        return slice_service.clock() - self._began

    def _look(self) -> tuple[bool, Slice | None]:
        """Look once. False if the look failed, which is reported and is no evidence."""
        try:
            slice_ = self.service.find()
        except ProviderError as error:
            if not self._unanswered:
                self._unanswered_since = slice_service.awake_clock()
            if error.message != self._unanswered:
                self.report(f"{self.path}: no answer ({error.message}); it is looked up again")
            self._unanswered = error.message
            return False, None
        self._unanswered = ""
        if slice_ is not None:
            self._seen, self._listed = slice_service.clock(), True
        return True, slice_

    # ------------------------------------------------------------------------------------------------ request

    def request(self) -> None:
        """Call the service until it has started the creation.

        A call without an answer may have had its effect: the slice's token shows that.
        """
        self._stage = before = _CreationStage.REFUSED
        self.report(f"requesting {self.path}: {self.service.text}")
        polling = Polling(cancel=self.cancel)
        for calls_left in reversed(range(MAX_START_CALLS)):
            self._check_cancelled()
            try:
                self._stage, self._requested = _CreationStage.UNANSWERED, slice_service.clock()
                self.service.start(self.token)
                self._stage = _CreationStage.STARTED
                return
            except ProviderError as error:
                if self.service.partial:
                    before = _CreationStage.UNANSWERED
                if error.kind == ErrorKind.EXISTS:
                    if self._is_ours(before):
                        self._stage = _CreationStage.STARTED  # by the previous call
                        return
                    self._stage = before
                    raise
                without_effect = error.kind != ErrorKind.UNAVAILABLE
                self._stage = before = before if without_effect else _CreationStage.UNANSWERED
                if not calls_left or (without_effect and error.kind != ErrorKind.RATE):
                    raise
                self.report(f"{self.path}: the service does not answer ({error.message}); trying again")
                polling.wait()

    def _is_ours(self, before: _CreationStage) -> bool:
        """Return whether what has the name carries our token; waits until a look succeeds."""
        if before == _CreationStage.REFUSED:
            return False  # no call of ours had an effect
        polling = Polling(cancel=self.cancel)
        while True:
            self._check_cancelled()
            answered, slice_ = self._look()
            if answered:
                return slice_ is not None and slice_.labels.get(TOKEN_LABEL) == self.token
            if self._is_unanswered():
                return True  # unknown: its deletion checks the token again
            polling.wait()

    # --------------------------------------------------------------------------------------------------- wait

    def wait(self) -> Slice:
        """Wait until the slice has been ready for `READY_POLLS` polls.

        Raises:
            ProviderError: The request failed; it is the request's error.
        """
        reported_at, reported, ready_polls, missing_polls = 0.0, "", 0, 0
        polling = Polling(cancel=self.cancel)
        while True:
            self._check_cancelled()
            self._check_failure()
            waited = self._waited()  # before the look: this machine may sleep between both
            answered, slice_ = self._look()
            if answered:
                ready = slice_ is not None and slice_.status == SliceStatus.READY and bool(slice_.workers)
                ready_polls = ready_polls + 1 if ready else 0
                missing_polls = missing_polls + 1 if slice_ is None else 0
                if slice_ is not None and ready_polls >= READY_POLLS:
                    self.report(f"{self.path} is ready: {count(len(slice_.workers), 'worker')}")
                    return slice_
                self._check_found(slice_, missing_polls)
                now = slice_.text() if slice_ is not None else "requested"
                if now != reported or slice_service.clock() - reported_at > REPORT_INTERVAL:
                    self.report(f"{self.path}: {now} ({duration(self._waited())})")
                    reported, reported_at = now, slice_service.clock()
            if waited > self._limit(slice_) and not ready_polls:
                self._check_limit(answered=answered)
            polling.wait()

    def _check_found(self, slice_: Slice | None, missing_polls: int) -> None:
        """Raise ProviderError if the service reports a slice that will not become ready."""
        if slice_ is None:
            if missing_polls >= NOT_FOUND_POLLS and slice_service.clock() - self._seen > NOT_FOUND_TIME:
                what = "no longer exists" if self._listed else "was requested, and is not listed"
                raise ProviderError(f"{self.name} cannot be created: {self.path} {what}", "", ErrorKind.NOT_FOUND)
            return
        if slice_.status in (SliceStatus.PREEMPTED, SliceStatus.FAILED):
            kind = ErrorKind.PREEMPTED if slice_.state in ("PREEMPTED", "SUSPENDED") else ErrorKind.STOCKOUT
            why = f": {slice_.why}" if slice_.why else ""
            raise ProviderError(f"{self.name} was {slice_.state} before it was ready{why}", "try again later", kind)

    def _limit(self, slice_: Slice | None) -> float:
        """Return the seconds for the creation: more for queued machines that now boot."""
        granted = slice_ is not None and bool(slice_.queued) and slice_.node
        return self.limit + (GRANTED_TIME if granted else 0.0)

    def _is_unanswered(self) -> bool:
        """Return whether the time is over and the service has not answered for too long."""
        unanswered = slice_service.awake_clock() - self._unanswered_since if self._unanswered else 0.0
        return self._waited() > self.limit and unanswered > UNANSWERED_TIME

    def _check_limit(self, *, answered: bool) -> None:
        """Raise ProviderError if the time is over.

        Without an answer the slice may be ready, and the wait goes on.
        """
        if not answered and not self._is_unanswered():
            return
        why = "" if answered else f", and the service has not answered since ({self._unanswered})"
        raise ProviderError(
            f"{self.name} was not ready within {duration(self.limit)}{why}",
            f"a longer valid_until: of {self.name} in the fleet file",
            ErrorKind.TIMEOUT,
        )

    def _check_cancelled(self) -> None:
        if self.cancel is not None and self.cancel.is_set():
            raise ProviderError(f"the creation of {self.name} was cancelled", "", ErrorKind.CANCELLED)

    def _check_failure(self) -> None:
        """Raise the request's own error, if it ended with one.

        A look that failed is no evidence.
        """
        if self._stage == _CreationStage.NOT_STARTED:
            return
        try:
            error = self.service.failure()
        except ProviderError:
            return
        if error is not None:
            self._failed = True
            raise ProviderError(f"{self.name} cannot be created: {error.message}", error.hint, error.kind)

    # --------------------------------------------------------------------------------------------------- undo

    def undo(self) -> tuple[str, str]:
        """Delete what this creation has created.

        Returns what may be left over and cost money (empty if nothing is), and the result in words.
        """
        if self._stage == _CreationStage.NOT_STARTED and self._foreign:
            return "", f"{self.path} existed before and is not changed"
        if self._stage == _CreationStage.NOT_STARTED:
            words = f"{self.path} was requested earlier and is not changed: midstream --delete {self.path}"
            return words, words
        nothing = "nothing was created, nothing costs money"
        if self._stage == _CreationStage.REFUSED:
            return "", nothing
        try:
            deleted = self._delete_own()
        except (ProviderError, KeyboardInterrupt) as error:
            why = str(error) or "interrupted"
            words = (
                f"{self.path} MAY STILL EXIST AND COST MONEY ({why}): midstream --delete {self.path}, or "
                f"{self.service.by_hand}"
            )
            return words, words
        return "", "what was created is deleted, nothing costs money" if deleted else nothing

    def _delete_own(self) -> bool:
        """Delete the slice with our token.

        Returns False if there was none. A request may have its effect before it is listed, or before it is answered:
        where no look has found the slice yet, it is looked for until it has to be listed.

        Raises:
            ProviderError: It cannot be deleted, or was requested and is not listed in time.
        """
        polls, polling = 0, Polling()
        while True:
            own = slice_service.find_patiently(self.service.find, also=(ErrorKind.CREDENTIALS,))
            if own is not None:
                if own.labels.get(TOKEN_LABEL) != self.token:
                    return False  # another slice of the same name
                deletion.delete(self.service, own, self.report)
                return True
            if self._listed or self._failed:
                return self._stage == _CreationStage.STARTED
            polls += 1
            if polls >= NOT_FOUND_POLLS and slice_service.clock() - self._requested > NOT_FOUND_TIME:
                break
            if polls == 1:
                self.report(f"{self.path}: not listed yet; it is deleted as soon as it is")
            polling.wait()
        if self._stage == _CreationStage.STARTED:
            raise ProviderError(f"it was requested, and is not listed after {duration(NOT_FOUND_TIME)}")
        return False
