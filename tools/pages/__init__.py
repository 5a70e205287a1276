"""Pages of the documentation that are made from the program.

`make pages` writes them, a test compares.
"""
