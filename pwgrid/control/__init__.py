"""The link between the master and its children: frames, protocol, both ends, and the master's control socket."""
