"""The decisions on one partition: values in, values out; no I/O, and no clock is read."""
