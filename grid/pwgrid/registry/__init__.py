"""What Redis knows: workers, counters, leases, session records."""
