"""Proposers: whole files to put in place of the user's, for the judge to decide on."""
