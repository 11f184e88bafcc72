"""What a proxy knows of the other hosts with which its own forms one grid."""
