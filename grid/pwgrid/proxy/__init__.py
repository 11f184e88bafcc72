"""The proxy process: HTTP API, handshake, queue, selection, handoff."""
