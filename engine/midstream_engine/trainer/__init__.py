"""Training on jax: one attempt of a run.

Imports go one way: `attempt` (start, restore, standby, replica) imports `loop` (updates, requests, saves), which
imports `computation` (what is compiled), which imports `runtime` (devices, log, status, record of the attempt).
"""
