"""`DedupConsumer.run`: worker threads call and retry a handler, its failures are dead-lettered, and redriven later."""
