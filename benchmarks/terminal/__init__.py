"""Programs in terminals of their own, and the fleets that they show."""
