"""Provider of TPU slices on Compute Engine.

They are single machines, and groups of machines with a topology.
"""
