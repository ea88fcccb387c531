"""``make demo``: one unchanged job on real data, run by stock Spark and with twophase's two lines, through faults."""
