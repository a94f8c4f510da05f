"""Transactions from Kafka to Kafka; a consumer loads this code when `DedupConsumer.transactions` is called.

The bridge uses the producer, and nothing else.
"""
