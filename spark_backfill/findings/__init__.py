"""The findings of a backfill about duplicates, as values that merge: numpy, and no Spark, no Kafka, no clock.

A run of contiguous offsets of one partition is folded by `sightings.fold_run`, sightings of the same IDs in
several runs are merged by `sightings.merge_runs`, and all of it adds up to one `findings.Findings`, from which
`adviser` and the page of `spark_backfill.report_page` are made.
"""
