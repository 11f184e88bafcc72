"""`pwgrid calibrate`: measures what this host carries, with real browsers, and proposes settings. No part of a grid."""
