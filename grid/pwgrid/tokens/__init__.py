"""The tokens that `pwgrid token create` makes: what they allow, and the file that has them."""
