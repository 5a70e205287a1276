"""A run's report: one static page of HTML that loads nothing."""
