"""A client's way in: first bytes, handshake, handoff to a worker, or a refusal."""
