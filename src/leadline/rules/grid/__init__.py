"""Rules of the grid family."""
