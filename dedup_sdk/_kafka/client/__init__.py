"""The client: its settings, errors, readers, questions to brokers, its lock and its end."""
