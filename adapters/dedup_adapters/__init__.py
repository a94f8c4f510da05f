"""Adapters between dedup_sdk and other systems; each is a module that you import by name.

An adapter uses only the public names of `dedup_sdk`. It imports the libraries that it needs when it is
imported itself.
"""
