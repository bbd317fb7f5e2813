"""Files that a competition takes: formats, checks, and predictions of new rows."""
