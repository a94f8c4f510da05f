"""Ties dedup_sdk to named outside systems; each adapter is a module of its own, imported by name.

Adapters use the public names of `dedup_sdk` only, and import what they adapt when they are imported themselves.
"""
