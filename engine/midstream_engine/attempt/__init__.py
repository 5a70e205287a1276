"""An attempt from start to end: restore and verify, standby, replica, promotion."""
