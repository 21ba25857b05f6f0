"""Comparisons of methods over seeds: the demo now, the tables and figures of the paper later."""
