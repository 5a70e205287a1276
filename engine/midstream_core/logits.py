"""Number of logits that a CPU computes at a time; engine and app use it."""

MAX_BLOCK = 1 << 26  # float32: 256 MiB
