"""Other programs' checkpoints. ``python -m midstream_engine.convert`` is the way in."""
