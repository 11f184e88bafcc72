"""What make runs before pwgrid is installed. Nothing of the package imports it."""
