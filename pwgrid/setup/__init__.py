"""Gets what a grid needs onto this host: browsers, a redis-server. No role imports it."""
