"""Operations on runs, the same for the command line and the terminal UI."""
