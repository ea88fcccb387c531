"""``make demo``: the same job on real data and with faults, run by stock Spark and with twophase's two lines."""
