"""Duplicate detection across consumers: claims and completed IDs in a store that all of them use."""
