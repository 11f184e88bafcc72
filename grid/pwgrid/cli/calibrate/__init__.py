"""`pwgrid calibrate`: measures with real browsers what load this host carries, and proposes settings."""
