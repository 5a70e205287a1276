"""Checks of targets whose machines a provider creates, without the provider."""

from __future__ import annotations

import dataclasses
import re

from midstream.errors import UsageError
from midstream.fleet.fleet import HostConfig
from midstream.fleet.quantities import check_price, parse_duration
from midstream.fleet.reservation import reservation_parts
from midstream.fleet.slice_target import REACHES, SliceTarget
from midstream.suggestions import nearest

# What the services accept as a name that they create, and what they may have listed.
_NEW_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_NAME = re.compile(r"[A-Za-z0-9_.~+%-]{1,63}")
MAX_RUN_DURATION = 7 * 86400.0  # seconds that flex-start may last
MIN_RUN_DURATION = 600.0


def check_slice(path: str, name: str, target: SliceTarget) -> None:
    """Raise UsageError for an invalid target."""
    where = f"{path}: targets.{name}"
    for field_name in ("project", "zone"):
        if not getattr(target, field_name):
            raise UsageError(f"{where} has no {field_name}", f"{field_name}: where the slice is")
    _check_name(where, name, target)
    for field_name in ("valid_until", "run_duration"):
        given = getattr(target, field_name)
        try:
            _ = None if given is None else parse_duration(given)
        except UsageError as error:
            raise UsageError(f"{where}.{field_name}: {error.message}", error.hint) from error
    target.check(where)
    check_price(where, target.price_per_hour)
    _check_price_class(where, target)
    if target.reach not in REACHES:
        raise UsageError(f"{where}.reach is {target.reach!r}", nearest(target.reach, REACHES))
    if target.flex_start and target.run_duration:
        seconds = parse_duration(target.run_duration)
        if not MIN_RUN_DURATION <= seconds <= MAX_RUN_DURATION:
            raise UsageError(f"{where}.run_duration is {target.run_duration}", "10m to 7d")
    field_names = [field.name for field in dataclasses.fields(HostConfig)]
    for key in target.worker:
        if key not in field_names:
            raise UsageError(f"{path}: targets.{name}.worker.{key} is unknown", nearest(str(key), field_names))


def _check_name(where: str, name: str, target: SliceTarget) -> None:
    given = target.name or name
    if (_NEW_NAME if target.create else _NAME).fullmatch(given):
        return
    field_name = "name" if target.name else "the target's name, which is that of the slice without name:,"
    raise UsageError(
        f"{where}: {field_name} is {given!r}",
        "name: of a slice that is created: lower case letters, digits and -, a letter first, at most 63 characters"
        if target.create
        else "name: letters, digits and -_.~+%, at most 63 characters",
    )


def _check_price_class(where: str, target: SliceTarget) -> None:
    reserved = target.reserved or bool(target.reservation)
    classes = {"spot": target.spot, "reserved": reserved, "flex_start": target.flex_start}
    given = [name for name, value in classes.items() if value]
    if len(given) > 1:
        raise UsageError(f"{where} is {' and '.join(given)}", "one of them")
    if target.calendar and not target.reservation:
        raise UsageError(f"{where} is calendar, and names no reservation", "reservation: NAME")
    if target.flex_start != (target.run_duration is not None):
        what = "flex_start, and has no run_duration" if target.flex_start else "not flex_start, and has a run_duration"
        raise UsageError(f"{where} is {what}", "flex_start: true and run_duration: 4h, at most 7d")
    if target.reservation and reservation_parts(target.reservation) is None:
        raise UsageError(
            f"{where}.reservation is {target.reservation!r}", "NAME, or PROJECT/NAME of another project's reservation"
        )
