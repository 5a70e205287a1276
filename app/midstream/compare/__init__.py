"""Comparison of accelerators by compiling for them: fit, speed, time and cost."""
