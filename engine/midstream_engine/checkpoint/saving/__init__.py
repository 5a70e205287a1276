"""Saving of checkpoints: snapshot, write, commit, retention."""
