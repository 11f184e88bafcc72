"""`pwgrid install` and `pwgrid uninstall`: a grid as a service of systemd or supervisord, with all that it needs."""
