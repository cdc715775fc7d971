"""Rules about atomic operations."""
