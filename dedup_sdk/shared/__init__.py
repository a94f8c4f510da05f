"""One memory for many consumers: who may handle an ID now, and which IDs are completed, in a store that all of them ask."""
