"""Which flag names a Ray cluster, the same for every verb that can use one?"""

from typing import Final

import click

RAY_ADDRESS: Final = click.option(
    "--ray-address",
    envvar="RAY_ADDRESS",
    metavar="HOST:PORT",
    help=(
        "Of the Ray cluster. [RAY_ADDRESS, else one of this machine alone for the time of the"
        " command]"
    ),
)
