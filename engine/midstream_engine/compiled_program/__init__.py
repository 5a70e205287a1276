"""Speed of a compiled program: its collectives and bytes.

The accelerators need not be here.
"""
