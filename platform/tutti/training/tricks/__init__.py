"""What changes how weights are learnt: one file per method."""
