"""The `strobe` command: finds the command, runs it, and turns every error into words and an exit code.

Exit codes: 0 all is well; 1 it was tried and did not work, or a violation was found; 2 the call was wrong and nothing
was tried; 130 interrupted.

A command group is one line in `COMMANDS` and one module. Modules are imported only when their command is used: asking
for help must not wait for Spark.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Final, NoReturn

import click

from strobe import __version__
from strobe.cli.output import print_error, printable
from strobe.model.errors import Failed, Misuse, StrobeError
from strobe.model.extras import missing_extra
from strobe.model.suggest import did_you_mean

__all__ = ["COMMANDS", "Lazy", "cli", "main"]


@dataclass(frozen=True)
class Lazy:
    """A command that is imported when it is used."""

    target: str
    """`module:attribute`, the attribute being a click command."""
    help: str


COMMANDS: Final[Mapping[str, Lazy]] = {
    "run": Lazy("strobe.cli.run:run_command", "Run a pipeline, or resume it."),
    "list": Lazy("strobe.cli.job_list:list_command", "List the jobs of this home directory."),
    "status": Lazy("strobe.cli.status:status_command", "Show a job: its stages, its checkpoints."),
    "logs": Lazy("strobe.cli.logs:logs_command", "Show what a job has logged."),
    "checkpoints": Lazy("strobe.cli.jobs:checkpoints_command", "Show a job's checkpoints."),
    "explain": Lazy("strobe.cli.explain:explain_command", "Why a snapshot took so long, or why it failed."),
    "checkpoint": Lazy("strobe.cli.jobs:checkpoint_command", "Take a checkpoint now."),
    "savepoint": Lazy("strobe.cli.jobs:savepoint_command", "Copy everything that a job is, while it runs."),
    "stop": Lazy("strobe.cli.jobs:stop_command", "End a job with a savepoint."),
    "cancel": Lazy("strobe.cli.jobs:cancel_command", "End a job."),
    "transactions": Lazy("strobe.cli.transactions:transactions_command", "Show what sinks have yet to make visible."),
    "checks": Lazy("strobe.cli.checks:checks_command", "Show the verdicts on a job's invariants."),
    "check": Lazy("strobe.cli.checks:check_command", "Ask invariants of any snapshot."),
    "release": Lazy("strobe.cli.release:release_command", "Release what invariants hold back."),
    "bisect": Lazy("strobe.cli.bisect:bisect_command", "Find the checkpoint at which an invariant broke."),
    "inspect": Lazy("strobe.cli.snapshots:inspect_command", "Show what a snapshot holds."),
    "verify": Lazy("strobe.cli.snapshots:verify_command", "Check every byte of a snapshot, and its cut."),
    "sql": Lazy("strobe.cli.sql:sql_command", "Ask a snapshot with SQL: state, rows in flight, sinks."),
    "diff": Lazy("strobe.cli.diff:diff_command", "What two snapshots differ in."),
    "dispose": Lazy("strobe.cli.dispose:dispose_command", "Delete a savepoint or a checkpoint."),
    "ui": Lazy("strobe.cli.ui:ui_command", "Show all jobs and live systems on a page."),
    "demo": Lazy("strobe.cli.demo:demo_command", "A ledger, killed in mid-checkpoint, resumed and checked."),
    "live": Lazy("strobe.cli.live:live", "Run processes that are snapshotted while they run."),
    "predicate": Lazy("strobe.cli.predicate:predicate", "Ask what could have held in a run."),
    "debug": Lazy("strobe.cli.debug:debug_command", "Walk through a run, forwards and backwards."),
    "journal": Lazy("strobe.cli.journal:journal", "Journals as Parquet, checked by Spark."),
    "sim": Lazy("strobe.cli.sim:sim", "Run, explore and verify simulated systems."),
}


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name].target.partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            ctx.fail(f"No such command {args[0]!r}. {did_you_mean(args[0], COMMANDS)}".rstrip())
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, lazy.help) for name, lazy in COMMANDS.items()])


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="strobe", message="%(prog)s %(version)s")
def cli() -> None:
    """Consistent pictures of systems that never stop moving.

    Strobe takes snapshots of Spark query graphs, live processes and simulated systems while they run, verifies that
    each is a consistent cut, and brings them back to life.
    """


def main(argv: Sequence[str] | None = None) -> NoReturn:
    args = list(sys.argv[1:] if argv is None else argv)
    as_json = "--json" in args[: args.index("--") if "--" in args else None]
    try:
        result = cli.main(args=args, prog_name="strobe", standalone_mode=False)
        sys.stdout.flush()
        code = result if isinstance(result, int) else 0
    except click.exceptions.Exit as error:
        code = error.exit_code
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        code = 130
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(printable(error.format_message()), err=True)
        code = 2
    except click.ClickException as error:
        print_error(_misuse(error), 2, as_json=as_json)
        code = 2
    except StrobeError as error:
        print_error(error, error.exit_code, as_json=as_json)
        code = error.exit_code
    except ModuleNotFoundError as error:
        missing = missing_extra(error)
        if missing is None:
            raise
        print_error(missing, missing.exit_code, as_json=as_json)
        code = missing.exit_code
    except PermissionError as error:
        denied = Failed(
            f"{error.filename} cannot be used: {error.strerror}.",
            untouched="Nothing was changed.",
            next="A job's directory belongs to its user. Ask as that user, or have it opened to your group.",
        )
        print_error(denied, 1, as_json=as_json)
        code = 1
    except BrokenPipeError:
        # The reader of our output has gone: that is not our failure, and nobody is left to be told.
        _no_more_output()
        code = 141
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        _no_more_output()
        where = "" if error.filename is None else f" in {error.filename}"
        print_error(_full(where), 1, as_json=False)
        code = 1
    sys.exit(code)


def _no_more_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _full(where: str) -> Failed:
    return Failed(
        f"There is no room left on the disk{where}: what was to be written could not be.",
        next="Make room there, and try again.",
    )


def _misuse(error: click.ClickException) -> Misuse:
    """A wrong call, in our words: one sentence, and where to read on."""
    sentence = " ".join(error.format_message().split())
    sentence = sentence[:1].upper() + sentence[1:]
    context = error.ctx if isinstance(error, click.UsageError) else None
    path = context.command_path if context else "strobe"
    return Misuse(sentence if sentence.endswith((".", "?", ")")) else f"{sentence}.", next=f"See: {path} --help")


if __name__ == "__main__":
    main()
