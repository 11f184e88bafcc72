"""Installs what a grid needs on this host: browsers, a redis-server."""
