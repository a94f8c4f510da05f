"""The engine that gives verdicts: the state of each partition joined to a key store, free of any Kafka client."""
