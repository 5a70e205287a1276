"""Arithmetic of a run that the engine applies and the app's planner predicts.

It needs the standard library only, without jax.
"""
