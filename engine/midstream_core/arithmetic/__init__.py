"""Arithmetic of a run, for the engine and the app's planner.

The package needs the standard library only, without jax.
"""
