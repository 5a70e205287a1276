"""Deletion of a slice, for every provider."""

from __future__ import annotations

from midstream.format import duration
from midstream.providers import slice_service
from midstream.providers.provider import TOKEN_LABEL, ErrorKind, Polling, Progress, ProviderError, Slice
from midstream.providers.slice_service import Service

DELETE_TIMEOUT = 900.0  # seconds


def delete(service: Service, slice_: Slice, progress: Progress) -> None:
    """Delete a slice, and wait until nothing of it exists.

    Args:
        service: The slice at its service.
        slice_: The slice as it was found.
        progress: Gets lines of progress.

    Raises:
        ProviderError: Something remains.
    """
    began, answered, requested, problem = slice_service.clock(), slice_service.clock(), False, ""
    polling = Polling()
    while True:
        try:
            now = service.find()
            if now is None or _is_another(slice_, now):
                progress(f"{slice_.path} is deleted")
                return
            if not requested or "DELETING" not in (now.state, now.queued):
                service.remove(now)
                if not requested:
                    progress(f"{slice_.path}: it is being deleted")
                requested = True
            answered, problem = slice_service.clock(), ""
        except ProviderError as error:
            requested = requested or error.kind == ErrorKind.NOT_FOUND
            refused = error.kind in (ErrorKind.PERMISSION, ErrorKind.INVALID, ErrorKind.DISABLED)
            if refused or (
                error.kind == ErrorKind.CREDENTIALS and slice_service.clock() - answered > slice_service.FIND_TIMEOUT
            ):
                message = f"{slice_.path} cannot be deleted: {error.message}"
                raise ProviderError(message, error.hint, error.kind) from error
            if error.kind == ErrorKind.BUSY:
                answered = slice_service.clock()
            problem = f": {error.message}"  # busy with its creation, or not answering: tried again
        if slice_service.clock() - began > DELETE_TIMEOUT:
            raise ProviderError(
                f"{slice_.path} still exists after {duration(DELETE_TIMEOUT)}{problem}", "", ErrorKind.TIMEOUT
            )
        polling.wait()


def delete_existing(service: Service, progress: Progress) -> None:
    """Delete the slice of a service.

    Args:
        service: The slice at its service.
        progress: Gets lines of progress.

    Raises:
        ProviderError: It does not exist, or something remains.
    """
    existing = slice_service.find_patiently(service.find)
    if existing is None:
        raise ProviderError(
            f"{service.path} does not exist", "midstream --status lists the slices", ErrorKind.NOT_FOUND
        )
    delete(service, existing, progress)


def _is_another(before: Slice, now: Slice) -> bool:
    """Return whether the name belongs to a later slice.

    Another user created it after the first was deleted.
    """
    token, other = before.labels.get(TOKEN_LABEL), now.labels.get(TOKEN_LABEL)
    return bool(token and token != other) or bool(before.identity and now.identity and before.identity != now.identity)
