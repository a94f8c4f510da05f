"""Kafka consumers that see each logical message once."""
