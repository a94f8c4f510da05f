"""From an assignment to the first delivery: recoveries, and the session that runs them beside the polls."""
