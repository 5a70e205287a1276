"""Import and export of other programs' checkpoints.

The command is ``python -m midstream_engine.convert``.
"""
