"""The engine that gives verdicts: lanes joined to a key store, free of any Kafka client."""
