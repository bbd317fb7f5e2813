"""Devices, precision, and several ranks."""
