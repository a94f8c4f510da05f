"""A demonstration with a real Kafka and real data, in one command (``dedup demo``; extra ``[demo]``).

flights            the data (336,776 flights), and an application that retries and so sends duplicates
worker, workers    the process that runs a user's loop, and the parent that starts and kills such processes
oracle             the records in the topic, the lost and doubled ones, and the comparison of the rebuilt store
                   with the workers' stores
scenario           the five steps
narrator           the output, and the result
"""

from __future__ import annotations

from dedup_sdk.errors import DedupError


class DemoError(DedupError):
    """The demo could not be run (its data is missing, a worker ended, or nothing progressed)."""
