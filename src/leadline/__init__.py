"""Leadline: finds out why a Triton kernel is slow and proves the rewrite."""
