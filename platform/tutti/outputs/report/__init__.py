"""The report of a study and its pictures."""
