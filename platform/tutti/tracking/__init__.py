"""Shows trials in MLflow."""
