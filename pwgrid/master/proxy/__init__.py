"""The proxy as a child of the master, its listening sockets, and its replacement."""
