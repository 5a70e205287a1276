"""Reading of configurations: YAML files, command-line flags, and the keys of other trainers."""
