"""What a command asks of a cluster, and does to a group beside its consumers. No consumer runs any of it."""
