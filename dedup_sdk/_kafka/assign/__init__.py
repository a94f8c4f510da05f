"""What is known of an assigned partition: its start, its commits, and whether the log is the same."""
