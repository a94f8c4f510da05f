"""The way of a message: fetched, judged, delivered, completed; and the calls that move partitions."""
