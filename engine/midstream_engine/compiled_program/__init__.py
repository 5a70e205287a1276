"""What a compiled program says of its speed: its collectives and bytes, for accelerators that need not be here."""
