"""What outlives a master: adoption by the next one, a reload, a version change."""
