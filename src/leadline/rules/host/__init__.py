"""Rules about what the host does around the launches: copies, synchronisation, compilation, number of launches."""
