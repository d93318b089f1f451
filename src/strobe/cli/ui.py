"""`strobe ui`: the page."""

from __future__ import annotations

import contextlib
import webbrowser

import click

from strobe.cli.output import Command, Session, Whole, common_options

__all__ = ["ui_command"]


@click.command(
    "ui",
    cls=Command,
    examples=(
        ("strobe ui --open", "all jobs and live systems of this home, in the browser"),
        ("strobe ui --port 0 --read-only", "on a free port; nothing can be ordered there"),
        ("strobe ui --home s3://bucket/prefix", "what jobs keep in a bucket: checkpoints and what they hold"),
        ("strobe ui --public-url https://ops.example.org/strobe", "behind a proxy that serves it below a path"),
    ),
)
@click.option("--port", type=Whole(), default=8670, show_default=True, help="Where to listen; 0 takes a free one.")
@click.option("--host", metavar="ADDRESS", default="127.0.0.1", show_default=True, help="What to listen on.")
@click.option("--open", "in_browser", is_flag=True, help="Open it in the browser.")
@click.option("--read-only", is_flag=True, help="Show everything, order nothing.")
@click.option("--public-url", metavar="URL", default="", help="The address at which a proxy shows it, path included.")
@common_options
def ui_command(port: int, host: str, in_browser: bool, read_only: bool, public_url: str, session: Session) -> None:
    """Serve a page with all jobs and live systems of this home, whether they run or not.

    It shows graphs, barriers on their way, snapshots and what they hold, and takes orders. Jobs do not need it, and it
    outlives them. Its address has a token in it: whoever knows the token may do what you may do. The token changes with
    each start, unless STROBE_UI_TOKEN has one.

    The home may be the place in a bucket where jobs keep their checkpoints: then those are shown, and nothing can be
    ordered.
    """
    from strobe.web.opening import doorway
    from strobe.web.serving import Options, bind, serve  # the web server is an extra

    served = bind(Options(session.place, host, port, public_url, read_only))

    def ready() -> None:
        if session.json:
            session.answer({"url": served.url, "address": served.address, "home": served.home.shown})
        else:
            session.say(("strobe ui", "bold"), f" shows {served.home.shown}")
            session.say(f"  {served.url}")
            if host not in ("127.0.0.1", "localhost", "::1"):
                session.say(
                    ("  Others can reach this port, unencrypted. ", "yellow"), "See docs/reference/security.md."
                )
            session.say("  Ctrl-C ends it; jobs go on.")
        if in_browser:
            webbrowser.open(door)

    with doorway(served.url) if in_browser else contextlib.nullcontext("") as door:
        serve(served, ready)
