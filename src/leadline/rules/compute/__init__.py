"""Rules about arithmetic: matrix units, types, layouts between operations."""
