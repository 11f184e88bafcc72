"""`pwgrid top`: a grid on one screen, with keys. What is shown and what a key means are decided without a terminal."""
