"""Warnings about an ID spec that does not fit the records. They look on, and change nothing."""
