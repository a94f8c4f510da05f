r"""The Spark job that rebuilds key stores from a topic's history.

    dedup backfill --bootstrap localhost:9092 --topic orders --group billing --id header:dedup-id --window 7d \
        --output snapshot

reads the topic once, folds it to the marks that a consumer would have kept, and writes
them as the sorted files of a snapshot. `spark_backfill.job` is run by ``spark-submit``, `spark_backfill.launch`
starts it.
"""
