"""The key store: marks and progress of each partition, in RocksDB or in memory."""
