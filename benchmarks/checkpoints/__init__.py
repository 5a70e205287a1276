"""One state, and the ways of saving and restoring it that `checkpoint.py` compares."""
