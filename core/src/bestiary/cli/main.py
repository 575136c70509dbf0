"""The command line: what there is to say, and one clear message when something is wrong.

Quick by design: each command imports what it needs when it runs, and none imports torch before
its input has been checked.
"""

import argparse
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import NoReturn

import bestiary
from bestiary.errors import EXIT_FAILURE, BestiaryError, ConfigError

Command = Callable[[argparse.Namespace], int]

_DESCRIPTION = """\
Train language models with reinforcement and related algorithms, each an independent package.

  bestiary demo                                             see one learn, in about two minutes
  bestiary train algorithm=grpo task=addition model=tiny    one run
  bestiary train -m algorithm=grpo,remax seed=0,1 …         several runs, one after another
  bestiary train --info                                     what can be chosen and set
  bestiary plugins                                          what is installed
  bestiary eval RUN                                         evaluate a run or a checkpoint
  bestiary new algorithm my_idea                            write a plugin that trains at once
  bestiary reshard --model llama-2-70b --train tp8.dp16 --generate tp4    bytes on paper
  bestiary doctor                                           what is wrong with this machine
"""

_TRAIN = """\
examples:
  bestiary train algorithm=grpo task=addition model=tiny seed=0
  bestiary train algorithm=grpo task=jsonl task.path=mine.jsonl model=hf model.path=./model
  bestiary train --config-dir configs +experiment=NAME loss.clip_high=0.28
  bestiary train algorithm=grpo task=addition model=tiny run_dir=out resume=auto
  bestiary train -m 'algorithm=glob(*,exclude=sft)' 'seed=range(0,5)' task=addition model=tiny
  bestiary train --info algorithm=grpo

overrides:
  GROUP=NAME       chooses an option of a group (algorithm, task, model, loss, tracker=[a,b] …)
  GROUP.KEY=VALUE  sets an option of what is chosen
  KEY=VALUE        sets something of the run itself (seed, steps, run_dir …)
  +experiment=NAME takes the settings of CONFIG_DIR/experiment/NAME.yaml
"""


class _Parser(argparse.ArgumentParser):
    """Reports a wrong command line in the form of all other errors."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message, hint=f"see {self.prog} --help")


def parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    form = argparse.RawDescriptionHelpFormatter
    root = _Parser("bestiary", description=_DESCRIPTION, formatter_class=form, allow_abbrev=False)
    root.add_argument("--version", action="version", version=f"bestiary {bestiary.__version__}")
    shared = _Parser(add_help=False)
    shared.add_argument(
        "--traceback", action="store_true", help="show where an error was raised, for reports"
    )
    plugged = _Parser(add_help=False, parents=[shared])
    plugged.add_argument(
        "--block-plugin",
        action="append",
        default=[],
        metavar="NAME",
        help="leave out a plugin or distribution, before it is imported; may be repeated",
    )
    commands = root.add_subparsers(dest="command", metavar="COMMAND")

    def add(name: str, text: str, run: Command, parent: _Parser) -> _Parser:
        made = commands.add_parser(
            name, help=text, description=text, parents=[parent], formatter_class=form,
            allow_abbrev=False,
        )  # fmt: skip
        made.set_defaults(run=run)
        return made

    _add_train(
        add("train", "Train: compose, check, and run in a process of its own.", _train, plugged)
    )
    listing = add("plugins", "List installed plugins and their components.", _plugins, plugged)
    listing.add_argument("--json", action="store_true", help="as JSON, for programs")
    _add_eval(add("eval", "Evaluate a run or a checkpoint on held-out problems.", _eval, plugged))
    demo = add("demo", "See a tiny model learn addition by reinforcement.", _demo, plugged)
    demo.usage = "bestiary demo [--traceback] [OVERRIDE …]"
    doctor = add(
        "doctor", "Look for what is wrong with this machine and installation.", _doctor, plugged
    )
    doctor.add_argument("--json", action="store_true", help="as JSON, for programs")
    _add_reshard(
        add("reshard", "Count what moving weights to generation costs, on paper.", _reshard, shared)
    )
    _add_new(add("new", "Write a plugin that installs, passes its tests and trains.", _new, shared))
    return root


def _add_train(train: argparse.ArgumentParser) -> None:
    train.epilog = _TRAIN
    train.usage = "bestiary train [options] [OVERRIDE …]"
    train.add_argument(
        "--config-dir", metavar="DIR", help="folder with experiment/NAME.yaml and other files"
    )
    train.add_argument(
        "--cfg", choices=["job"], help="print the composed configuration as YAML and stop"
    )
    train.add_argument(
        "--info",
        nargs="?",
        const="",
        metavar="TOPIC",
        help="print what can be chosen and set: alone, or with run, GROUP or GROUP=NAME",
    )
    train.add_argument(
        "-m", "--multirun", action="store_true", help="run every combination of key=a,b values"
    )


def _add_eval(evaluate: argparse.ArgumentParser) -> None:
    evaluate.usage = "bestiary eval RUN_OR_CHECKPOINT [options] [OVERRIDE …]"
    evaluate.epilog = (
        "example:\n  bestiary eval runs/20300101-120000-grpo-addition-s0 eval.samples=8"
    )
    evaluate.add_argument(
        "source", metavar="RUN_OR_CHECKPOINT", help="a run folder, or its checkpoints/step_N"
    )
    evaluate.add_argument("--json", action="store_true", help="as JSON, for programs")


def _add_reshard(made: argparse.ArgumentParser) -> None:
    made.usage = "bestiary reshard --model MODEL --train LAYOUT --generate LAYOUT [options]"
    made.epilog = (
        "example:\n  bestiary reshard --model llama-2-70b --train pp1.tp8.dp16 --generate tp4\n\n"
        "LAYOUT has the dims pp (pipeline stages), dp (replicas), fsdp (row shards) and tp (tensor "
        "parallel),\nas in pp2.fsdp4.tp2; generation has pp and tp."
    )
    made.add_argument("--model", required=True, help="a known shape, or a folder with config.json")
    made.add_argument("--train", required=True, metavar="LAYOUT", help="of training")
    made.add_argument("--generate", required=True, metavar="LAYOUT", help="of generation")
    made.add_argument("--dtype", choices=["bf16", "fp32"], default="bf16", help="that moves")
    made.add_argument("--json", action="store_true", help="as JSON, for programs")


def _add_new(made: argparse.ArgumentParser) -> None:
    from bestiary.cli.new import KINDS

    made.usage = "bestiary new KIND NAME [--dir DIR]"
    made.epilog = "example:\n  bestiary new estimator my_idea"
    made.add_argument("kind", metavar="KIND", choices=KINDS, help=", ".join(KINDS))
    made.add_argument("name", metavar="NAME", help="an identifier, as in my_idea")
    made.add_argument("--dir", default=".", help="where the folder is made; here by default")


# --------------------------------------------------------------------------- commands


def _train(arguments: argparse.Namespace) -> int:
    from bestiary.cli.train import train

    return train(arguments)


def _plugins(arguments: argparse.Namespace) -> int:
    from bestiary.cli.plugins import plugins

    return plugins(arguments)


def _eval(arguments: argparse.Namespace) -> int:
    from bestiary.cli.eval import evaluate

    return evaluate(arguments)


def _demo(arguments: argparse.Namespace) -> int:
    from bestiary.cli.demo import demo

    return demo(arguments)


def _reshard(arguments: argparse.Namespace) -> int:
    from bestiary.cli.reshard import reshard

    return reshard(arguments)


def _new(arguments: argparse.Namespace) -> int:
    from bestiary.cli.new import new

    return new(arguments)


def _doctor(arguments: argparse.Namespace) -> int:
    from bestiary.cli.doctor import doctor

    return doctor(arguments)


_WITH_OVERRIDES = ("train", "eval", "demo")


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Read a command line; ``overrides`` are the words that are no options.

    Raises:
        ConfigError: for an unknown command or option.
    """
    root = parser()
    arguments, rest = root.parse_known_args(list(argv))
    for word in rest:
        if word.startswith("-") or arguments.command not in _WITH_OVERRIDES:
            raise _unknown(word, root, arguments.command)
    arguments.overrides = rest
    return arguments


def _unknown(word: str, root: argparse.ArgumentParser, command: str | None) -> ConfigError:
    from bestiary.config.suggest import did_you_mean

    name = word.split("=")[0]
    options = [*_options(root)]
    for action in root._actions:
        if isinstance(action, argparse._SubParsersAction) and command in action.choices:
            options += _options(action.choices[command])
    where = f"bestiary {command}" if command else "bestiary"
    return ConfigError(
        f"{where}: unknown argument '{word}'{did_you_mean(name, options)}",
        hint=f"see {where} --help; settings are written key=value",
    )


def _options(given: argparse.ArgumentParser) -> list[str]:
    return [name for action in given._actions for name in action.option_strings]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit status.

    0 for success, 2 for input that is refused before anything has started, 1 for a run that
    failed, 130 after Ctrl-C.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    show_trace = "--traceback" in words
    try:
        arguments = parse(words)
        if arguments.command is None:
            parser().print_help()
            return 0
        run: Command = arguments.run
        return run(arguments)
    except BestiaryError as error:
        return _fail(str(error), error.exit_code, show_trace)
    except KeyboardInterrupt:
        return _fail("interrupted", 130, show_trace)
    except BrokenPipeError:  # the reader of our output, as in `| head`, has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILURE
    except Exception as error:
        text = f"unexpected {type(error).__name__}: {error}\n  -> this is a fault of the program; "
        return _fail(text + "run it again with --traceback and report it", EXIT_FAILURE, show_trace)


def _fail(text: str, status: int, show_trace: bool) -> int:
    if show_trace:
        traceback.print_exc()
    prefix = "" if status == 130 else "error: "
    sys.stderr.write(f"{prefix}{text}\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
