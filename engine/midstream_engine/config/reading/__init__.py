"""Reading of configurations: YAML files, flags, keys of other trainers.

The flags are those of the command line.
"""
