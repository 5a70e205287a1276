"""An attempt of another trainer's run on one node: its start, fence, standby, stop and end."""
