"""The Kafka side: a drop-in consumer around the engine."""
