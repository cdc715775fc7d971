"""Rules about software pipelining and asynchronous matrix instructions."""
