"""The page that shows the grid: its files, and what feeds it."""
