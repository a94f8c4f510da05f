"""The key store: what a group remembers of each partition, in RocksDB or in memory."""
