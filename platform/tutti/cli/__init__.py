"""Parses the arguments of `tutti`, calls what they ask for, and prints."""
