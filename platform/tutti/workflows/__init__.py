"""What a user does with a study, as functions with plain arguments and values as results: the Python API."""
