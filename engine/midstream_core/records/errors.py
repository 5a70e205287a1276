"""Errors of records."""


class RecordError(ValueError):
    """Error of a record that is missing, partial or of another shape.

    The message names the file and the field.
    """


class DamagedRecordError(RecordError):
    """Error of a file that exists and cannot be read; it never counts as absent.

    A damaged file is partial, of another shape, or not a regular file.
    """


class NewerFormatError(DamagedRecordError):
    """Error of a file of a newer midstream: intact, and neither used nor repaired."""
