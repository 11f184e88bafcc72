"""Scripts for make, for the build and for docs/. The package imports none of them."""
