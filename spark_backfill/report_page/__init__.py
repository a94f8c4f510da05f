"""The report that people look at: one HTML page that needs nothing else, PNGs, and the JSON that they are made from.

Needs the extra ``[report]`` (Jinja and Matplotlib) and no Spark. The figures are found out by
`spark_backfill.findings`.
"""
