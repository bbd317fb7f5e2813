"""What labels and predictions are, one small file per kind of task."""
