"""Arithmetic of a run that the engine applies and the app's planner predicts: standard library only, without jax."""
