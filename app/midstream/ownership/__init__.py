"""Proof of a run's owner: signed records, memory, judgement of copies."""
