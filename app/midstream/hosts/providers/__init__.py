"""Machines that come and go: who provides them, behind one seam. ``base`` says what a provider can do."""
