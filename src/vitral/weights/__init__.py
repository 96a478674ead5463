"""Files of weights, in and out: one file a family."""
