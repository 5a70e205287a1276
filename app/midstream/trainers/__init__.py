"""Other trainers: their run files and defaults, the division of their batch, and how their runs are started."""
