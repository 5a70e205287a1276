"""Speed of a compiled program: its collectives and bytes, for accelerators that need not be here."""
