"""Example kernels of the tile rules: their tests and their documentation."""
