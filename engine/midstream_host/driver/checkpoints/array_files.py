"""Arrays that TensorStore wrote below a checkpoint: OCDBT stores, zarr 2 and 3."""

from __future__ import annotations

import posixpath

from midstream_host.driver.checkpoints.checkpoint import IncompleteError
from midstream_host.driver.checkpoints.checkpoint_tree import CheckpointTree
from midstream_host.formats import ocdbt, zarr_array

ARRAY = ".zarray"
ARRAY_3 = "zarr.json"


def check_arrays(tree: CheckpointTree, *, every_chunk: bool = False) -> int:
    """Check every store of OCDBT and every array of zarr; return their number.

    ``every_chunk``: an array of zarr 3 has each of its chunks, also one that has the fill value alone.

    Data files of OCDBT have no sizes outside of them: that one is there and has bytes is all that is checked of them.

    Raises:
        IncompleteError: A manifest or a chunk is missing or damaged.
    """
    count = 0
    for path in sorted(tree.sizes):
        folder, name = posixpath.split(path)
        if name == ocdbt.MANIFEST:
            tree.checked(path, lambda path=path: ocdbt.check(tree.full(path)))
            data = tree.below(posixpath.join(folder, "d"))
            if not data:
                raise IncompleteError("{} is missing, the data of {}".format(posixpath.join(folder, "d"), path))
            empty = [name for name, size in data.items() if not size]
            if empty:
                raise IncompleteError("{} is empty".format(posixpath.join(folder, "d", min(empty))))
            count += 1
        elif name == ARRAY:
            described = tree.json(path)
            tree.checked(
                folder, lambda described=described, folder=folder: zarr_array.check(described, tree.below(folder))
            )
            count += 1
        elif name == ARRAY_3:
            described = tree.json(path)
            files = tree.below(folder)
            tree.checked(
                folder,
                lambda described=described, files=files: zarr_array.check_3(described, files, every_chunk=every_chunk),
            )
            count += described.get("node_type") == "array"
    folders = {path[: path.index("/d/")] for path in tree.sizes if "/d/" in path}
    for folder in sorted(folders) + ([""] if tree.below("d") else []):
        manifest = posixpath.join(folder, ocdbt.MANIFEST)
        if not tree.has(manifest) and not _is_array(tree, folder):
            raise IncompleteError("{} is missing: it is written last".format(manifest))
    return count


def _is_array(tree: CheckpointTree, folder: str) -> bool:
    """Return whether a folder with ``d`` in it belongs to arrays and not to OCDBT."""
    return any(posixpath.basename(path) in (ARRAY, ARRAY_3) for path in tree.below(posixpath.join(folder, "d")))
