"""Metadata services of clouds: a machine's identity, and preemption notices."""
