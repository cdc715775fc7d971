"""Rules: one file per cause, in families. They read records and return records; they never run anything."""
