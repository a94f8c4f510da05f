"""One partition's decisions, as columns: what is in flight, parked, completed, and how a partition starts."""
