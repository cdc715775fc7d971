"""Rules of the tile family."""
