"""The control link between the master and a child: frames, protocol, both ends; and the master's control socket."""
