"""Keeps a study's folder in order: its lock, its size, and repairs after crashes."""
