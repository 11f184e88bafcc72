"""The settings of the grid: their table, how values are read, the rules over them, and how they are written out."""
