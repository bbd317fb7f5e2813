"""What a task is: its files, labels, metric and predictions."""
