"""Checkpoint stores in buckets, as this machine reads and writes them."""
