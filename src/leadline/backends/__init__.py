"""Compilers behind one interface: compile a launch, explain what its passes did, probe a counterfactual."""
