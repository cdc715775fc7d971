"""Example kernels of the grid rules: their tests and their documentation."""
