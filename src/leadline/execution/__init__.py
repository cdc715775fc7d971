"""Worker processes that run user code and compilers, the user's modules inside them, and the store of what they produced."""
