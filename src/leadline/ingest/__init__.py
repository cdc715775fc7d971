"""Taking cases in: reading the user's file, and running its wrapper dry to see every launch as the JIT would."""
