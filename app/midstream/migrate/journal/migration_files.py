"""Files of a migration: their content, the user's requests, its process's lock."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from midstream.errors import Exit, MidstreamError, UsageError
from midstream.fleet.fleet import Fleet
from midstream.fleet.fleet_file import load_fleet, parse_fleet
from midstream.migrate.journal import damaged_files
from midstream.migrate.journal import journal as journals
from midstream.migrate.journal.certificate import Certificate
from midstream.migrate.journal.downtime_report import DowntimeReport
from midstream.migrate.journal.plan import Plan
from midstream.migrate.modes.registry import WARM
from midstream.state_directory import migrations_directory
from midstream_core import records

LOCK_TIMEOUT = 0.5  # seconds
STEP_SECONDS = 60.0  # for which a reported step is shown


class MigrationFiles:
    """The files of one migration.

    Content that is damaged is read from the journal, where it has it.
    """

    def __init__(self, migration: str) -> None:
        self.migration = migration
        self.path = migrations_directory() / migration
        self.plan_file = self.path / "plan.json"
        self.fleet_file = self.path / "fleet.yaml"
        self.journal_file = self.path / "journal.jsonl"
        self.downtime_file = self.path / "downtime.json"
        self.certificate_file = self.path / "certificate.json"
        self.page_file = self.path / "certificate.md"
        self.picture_file = self.path / "certificate.svg"
        self.request_file = self.path / "request"
        self.mode_file = self.path / "request-mode"
        self.log_file = self.path / "process.log"
        self._lock_file = self.path / ".lock"
        self._hold_file = self.path / ".hold"
        self._step_file = self.path / ".step"

    def journal_size(self) -> int:
        """Return the journal's size in bytes: the offset of the next line."""
        return self.journal_file.stat().st_size if self.journal_file.is_file() else 0

    def journal_lost(self) -> bool:
        """Return whether the journal is missing, empty or no file.

        A new migration has one.
        """
        return not self.journal_size()

    # ------------------------------------------------------------------------------------------ content

    def plan(self) -> Plan:
        """Return the plan, from the journal if plan.json is damaged.

        Raises:
            MidstreamError: Both are damaged.
        """
        return self.plan_or_journaled(self._journal().plan)

    def _journal(self) -> journals.Content:
        """Return the journal's content, empty if it cannot be read."""
        try:
            return journals.read(self.journal_file)
        except records.RecordError:
            return journals.Content()

    def plan_or_journaled(self, journaled: object) -> Plan:
        """Return the plan, from its journaled JSON value if plan.json is damaged."""
        try:
            return Plan.from_json(records.read_json(str(self.plan_file)), str(self.plan_file))
        except (OSError, records.RecordError) as error:
            why = error
        try:
            return Plan.from_json(journaled, str(self.journal_file))
        except records.RecordError:
            raise self._lost(self.plan_file, why) from None

    def fleet(self) -> Fleet:
        """Return the fleet of the plan, from the journal if fleet.yaml is damaged.

        Raises:
            MidstreamError: both are damaged.
        """
        content = self._journal()
        return self.fleet_or_journaled(self.plan_or_journaled(content.plan), content.fleet)

    def fleet_or_journaled(self, plan: Plan, journaled: str | None) -> Fleet:
        """Return the fleet, from its journaled text if fleet.yaml is damaged."""
        try:
            self.check_fleet(plan, journaled)
            return load_fleet(self.fleet_file)
        except UsageError as error:
            if journaled is None:
                raise self._lost(self.fleet_file, error) from None
        return parse_fleet(journaled, str(self.fleet_file))

    def _lost(self, file: Path, why: Exception) -> MidstreamError:
        return MidstreamError(
            f"migration {self.migration}: {damaged_files.what_is_wrong(file, why)}, and the journal does not "
            "have its content",
            f"restore {file} or {self.journal_file} from a backup; midstream --status shows where the run is",
            Exit.REFUSED,
        )

    def downtime(self) -> DowntimeReport | None:
        """Return the downtime report; None if it is missing or damaged."""
        return damaged_files.read_or_none(self.downtime_file, DowntimeReport.from_json)

    def certificate(self) -> Certificate | None:
        """Return the certificate; None if it is missing or damaged."""
        return damaged_files.read_or_none(self.certificate_file, Certificate.from_json)

    def restore(self, journal: journals.Journal) -> list[str]:
        """Restore plan.json, fleet.yaml and the journal's first lines from each other.

        Returns a line for each that was damaged and restored.

        Raises:
            MidstreamError: no file has the content.
        """
        content = self._journal()
        plan = self.plan_or_journaled(content.plan)
        self.fleet_or_journaled(plan, content.fleet)
        restored: list[str] = []
        if why := damaged_files.problem_of(self.plan_file, self.check_plan):
            self._put(self.plan_file, records.canonical_json(plan.to_json()))
            restored.append(f"{self.plan_file.name} {why}: restored from the journal")
        if why := damaged_files.problem_of(self.fleet_file, lambda: self.check_fleet(plan, content.fleet)):
            self._put(self.fleet_file, (content.fleet or "").encode())
            restored.append(f"{self.fleet_file.name} {why}: restored from the journal")
        if not journal.has_header:
            journal.write_header(plan.to_json(), self.fleet_file.read_text())
        return restored

    def check_plan(self) -> None:
        """Raise OSError or RecordError if plan.json is damaged."""
        Plan.from_json(records.read_json(str(self.plan_file)), self.plan_file.name)

    def check_fleet(self, plan: Plan | None, journaled: str | None) -> None:
        """Check that fleet.yaml can be read and has the hosts that the plan names.

        A file equal to the journaled text is never damaged.

        Raises:
            UsageError: It cannot be read, or lacks such a host.
        """
        with suppress(OSError, UnicodeDecodeError):  # load_fleet names what is wrong
            if journaled is not None and self.fleet_file.read_text() == journaled:
                return
        fleet = load_fleet(self.fleet_file)
        missing = [name for name in (plan.source, plan.target) if name not in fleet.target_names] if plan else []
        if missing and not fleet.has_slices:
            raise UsageError(f"{self.fleet_file} has no host {missing[0]}, which the plan names")

    @staticmethod
    def _put(file: Path, data: bytes) -> None:
        damaged_files.set_aside(file)
        records.write_bytes(str(file), data, mode=0o600)

    def report_step(self, host: str, step: int) -> None:
        """Report where the run is, for who follows the migration; nothing depends on it."""
        with suppress(OSError):
            records.write_bytes(str(self._step_file), f"{host} at step {step:,}".encode(), durable=False, mode=0o600)

    def live_step(self) -> str:
        """Return the last minute's report of `report_step`; empty without one."""
        try:
            fresh = time.time() - self._step_file.stat().st_mtime < STEP_SECONDS
            return self._step_file.read_text()[:80] if fresh else ""
        except (OSError, UnicodeDecodeError):
            return ""

    # ------------------------------------------------------------------------------------------ requests

    def request_rollback(self, *, agreed: bool = False) -> None:
        """Request a rollback.

        ``agreed``: also where a host has lost what it had.
        """
        damaged_files.set_aside(self.request_file)
        text = damaged_files.ROLLBACK_AGREED if agreed else damaged_files.ROLLBACK
        records.write_bytes(str(self.request_file), f"{text}\n".encode())

    def rollback_requested(self) -> bool:
        """Return whether the user requested a rollback. Any other content is ignored."""
        return damaged_files.request(self.request_file) in (damaged_files.ROLLBACK, damaged_files.ROLLBACK_AGREED)

    def losses_agreed(self) -> bool:
        """Return whether the user gives up what a host has lost."""
        return damaged_files.request(self.request_file) == damaged_files.ROLLBACK_AGREED

    def request_warm_mode(self) -> None:
        damaged_files.set_aside(self.mode_file)
        records.write_bytes(str(self.mode_file), f"{WARM}\n".encode())

    def withdraw_request(self) -> None:
        with suppress(OSError):  # a path that is no file is no request
            self.request_file.unlink(missing_ok=True)

    def hold(self) -> Callable[[], None]:
        """Keep the migration from finishing while its user decides on a rollback.

        Returns the function that ends that; the end of this process does too.

        Raises:
            MidstreamError: The file cannot be opened.
        """
        try:
            descriptor = os.open(self._hold_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # `is_held` locks it for a moment: not this way
        except OSError as error:
            raise MidstreamError(f"{self._hold_file} cannot be locked: {error.strerror}") from error
        return partial(os.close, descriptor)

    def is_held(self) -> bool:
        """Return whether a user decides now whether to roll the migration back."""
        return _is_locked(self._hold_file, fcntl.LOCK_EX)

    # ------------------------------------------------------------------------------------------ lock

    @contextmanager
    def locked(self) -> Generator[None, None, None]:
        """Lock the migration, for the process that executes it. MidstreamError if locked."""
        try:
            descriptor = os.open(self._lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise MidstreamError(
                f"{self._lock_file} cannot be opened: {error.strerror}", f"move it away: mv {self._lock_file} /tmp"
            ) from error
        try:
            deadline = time.monotonic() + LOCK_TIMEOUT
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except OSError as error:
                    if error.errno not in (errno.EAGAIN, errno.EACCES):
                        raise
                    if time.monotonic() >= deadline:
                        message = f"migration {self.migration} is being executed by another process"
                        raise MidstreamError(message) from error
                time.sleep(0.01)  # `is_locked` locks it for a moment
            os.ftruncate(descriptor, 0)
            os.write(descriptor, str(os.getpid()).encode())
            yield
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # a child that is being started has a copy of the descriptor
            os.close(descriptor)

    def is_locked(self) -> bool:
        """Return whether a process executes the migration now."""
        return _is_locked(self._lock_file, fcntl.LOCK_SH)


def _is_locked(file: Path, kind: int) -> bool:
    """Return whether the file has a lock that excludes one of this ``kind``."""
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CLOEXEC)
    except OSError:  # missing, or not a file that can be locked
        return False
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False
