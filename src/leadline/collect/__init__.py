"""From a case to evidence: the source's facts, sampled addresses, floors and predictions, times on a device."""
