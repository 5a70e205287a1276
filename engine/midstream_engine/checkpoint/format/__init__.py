"""Format of checkpoints: names, dtypes, chunks, zarr metadata."""
