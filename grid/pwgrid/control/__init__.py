"""The control link between the master and a child: frames, protocol, both sides; and the master's control socket."""
