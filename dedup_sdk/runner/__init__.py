"""`DedupConsumer.run`: messages go to worker threads, what fails is tried again or dead-lettered, and dead letters are sent back."""
