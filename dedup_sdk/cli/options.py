"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

Store = Annotated[
    Path,
    typer.Option("--store", help="The folder that DedupConsumer(store=...) names.", show_default=False),
]
Topic = Annotated[str, typer.Option("--topic", help="The topic's name.", show_default=False)]
Group = Annotated[
    str | None,
    typer.Option(
        "--group", help="The consumer group; needed where the folder holds several.", show_default=False
    ),
]
Cluster = Annotated[
    str | None,
    typer.Option(
        "--cluster", help="The cluster's ID; needed where the folder holds several.", show_default=False
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object, as the last line of stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing on stderr but errors.")]
