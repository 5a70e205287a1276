"""Errors of records."""


class RecordError(ValueError):
    """A record is missing, partial or of another shape; the message names the file and the field."""


class DamagedRecordError(RecordError):
    """A file exists and cannot be read: partial, of another shape, or not a regular file. Never treated as absent."""


class NewerFormatError(DamagedRecordError):
    """A newer midstream wrote the file. It is intact, and is neither used nor repaired."""
