"""Notices of a cloud that this machine is about to end: Google's, AWS's, Azure's.

Standard library only.

This module is also sent to hosts. A cloud receives requests only on its own machines, which their firmware names.
"""

from __future__ import annotations

from collections.abc import Callable

from midstream_core import aws_metadata, azure_metadata, google_metadata

Source = Callable[[], list[str] | None]


def sources(product: str = google_metadata.PRODUCT) -> dict[str, Source]:
    """Return by cloud a function that reads the notices in force.

    The function returns None where they cannot be read.
    """
    google, aws, azure = (
        google_metadata.metadata_server(product),
        aws_metadata.metadata_address(),
        azure_metadata.metadata_address(),
    )
    by_cloud: dict[str, Source] = {}
    if google:
        by_cloud["google"] = lambda: google_metadata.notices(google)
    if aws:
        by_cloud["aws"] = lambda: aws_metadata.notices(aws)
    if azure:
        by_cloud["azure"] = lambda: azure_metadata.notices(azure)
    return by_cloud
