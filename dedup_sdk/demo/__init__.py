"""The main job on a real Kafka and real data, in one command (``dedup demo``; extra ``[demo]``).

| module | what it is |
|---|---|
| `flights` | the data: 336,776 flights, read from an installed file |
| `producer` | an application that retries and so sends duplicates |
| `worker`, `crew` | the processes that run a user's loop, and who starts and kills them |
| `topic`, `oracle` | what is in the topic, and what was lost or doubled of it |
| `rebuild`, `stores` | the Spark job, and whether its marks are those of the workers |
| `scenario` | the five steps |
| `narrator`, `result` | what is said about them |
"""
