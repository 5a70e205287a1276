"""DeepSpeed's file ``latest``, which names the newest checkpoint beside it.

Standard library only, Python 3.8.
"""

from __future__ import annotations

from collections.abc import Collection


def named_folder(text: str, folders: Collection[str]) -> str:
    """Return the folder that the text of ``latest`` names.

    Raises:
        ValueError: The text names no folder, or may have been cut: another folder's name begins with it.
    """
    tag = text.strip()
    longer = sorted(name for name in folders if tag and name.startswith(tag) and name != tag)
    if tag in folders and not longer:
        return tag
    if longer:
        raise ValueError(f"latest: names {tag!r}, and may have been cut: {longer[0]} is there too (name the folder)")
    raise ValueError(f"latest: names {tag[:80]!r}, which is no checkpoint in that directory")
