"""Export of runs to Levanter 1.2; the import is in ``interop/levanter``."""
