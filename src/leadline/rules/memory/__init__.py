"""Rules about how a kernel addresses global memory."""
