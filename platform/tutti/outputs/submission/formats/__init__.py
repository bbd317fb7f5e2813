"""Submission formats, one small file each."""
