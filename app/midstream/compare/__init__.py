"""Compare accelerators before they are rented: fit, speed, time and cost of a run, by compiling for them."""
