"""Rows become an encoded table: read, cleaned, split, tokenized once, batched."""
