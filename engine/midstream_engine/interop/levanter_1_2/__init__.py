"""Export of runs to Levanter 1.2; its checkpoints are read by `midstream_engine.interop.levanter`."""
