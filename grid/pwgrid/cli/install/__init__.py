"""`pwgrid install` and `pwgrid uninstall`: make a grid a service of systemd or supervisord, and remove it again."""
