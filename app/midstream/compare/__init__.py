"""Comparison of accelerators before they are rented, by compiling for them.

It has fit, speed, time and cost of a run.
"""
