"""Is this machine, is a target fit for what will be asked of it? Every check says what mends it."""
