"""What one partition decides: values in, values out; no I/O, and no clock is read."""
