"""Import and export of other programs' checkpoints; the command is ``python -m midstream_engine.convert``."""
