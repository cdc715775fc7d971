"""From evidence to ranked findings: escalation over the four levels, grades, causal chains, limits."""
