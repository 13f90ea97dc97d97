"""What comparisons of what is learned share: on which machine they ran, and how results are written."""
import datetime
import json
import os
import pathlib
import platform
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]


def describe_machine():
    cpu = next((line.split(":", 1)[1].strip() for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines()
                if line.startswith("model name")), platform.machine())
    return {"date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"), "cpu": cpu,
            "cores": os.cpu_count()}


def write_results(args, report, table):
    """The report as JSON to --out, the table to --table, where given."""
    for path, text in ((args.out, json.dumps(report, indent=2) + "\n"), (args.table, table)):
        if path:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            print(f"written to {path}")


def add_run_flags(parser, work):
    """Flags of a comparison of finished runs on the quick start's text."""
    parser.add_argument("--athanor", type=pathlib.Path, default=ROOT / "build" / "athanor")
    parser.add_argument("--train-data", default="runs/quickstart/data/*_train_*.bin")
    parser.add_argument("--valid-data", default="runs/quickstart/data/*_val_*.bin")
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path(work), help="finished runs are kept here, not repeated")
    parser.add_argument("--threads", type=int, default=0, help="of each run; 0: every core")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--table", type=pathlib.Path)


def add_seed_flags(parser, *, work, model, steps):
    """Flags of a comparison that makes short runs with several seeds; parse with parse_seed_flags()."""
    parser.add_argument("--athanor", type=pathlib.Path, default=ROOT / "build" / "athanor")
    parser.add_argument("--config", type=pathlib.Path, default=ROOT / "configs" / "quickstart.json",
                        help=f"what the runs have in common (default: the quick start's; its model is made {model})")
    parser.add_argument("--train-data", default="runs/quickstart/data/*_train_*.bin", help="glob of shards")
    parser.add_argument("--valid-data", default="runs/quickstart/data/text_val_000000.bin", help="held-out text")
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path(work), help="keeps finished runs")
    parser.add_argument("--out", type=pathlib.Path, help="JSON file for the results")
    parser.add_argument("--table", type=pathlib.Path, help="Markdown file for the table")
    parser.add_argument("--short", action="store_true", help="seconds, with a model that learns nothing: for tests")


def parse_seed_flags(parser):
    args = parser.parse_args()
    if not args.athanor.is_file():
        parser.error(f"{args.athanor} does not exist: build it, or name it with --athanor")
    return args


def call(args, words):
    """What the program prints, of a call that succeeds."""
    done = subprocess.run([str(args.athanor), *map(str, words)], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"athanor {' '.join(map(str, words))} ended with status {done.returncode}: {done.stderr[-800:]}")
    return done.stdout


def with_options(config, options):
    """The configuration with other values of options; a section, such as {"lora": {"rank": 8}}, keeps its other options."""
    into = dict(config)
    for key, value in options.items():
        into[key] = {**into.get(key, {}), **value} if isinstance(value, dict) else value
    return into


def finished_run(args, name, config):
    """Loss on the whole held-out text after a run of this configuration."""
    folder = args.work / name
    result, written = folder / "result.json", folder / "config.json"
    config = with_options(config, {
        "save": str(folder / "run"), "train_data": args.train_data, "valid_data": args.valid_data,
        "threads": args.threads, "eval_interval": 0, "save_interval": 0, "checkpoint": {"keep_latest_k": 1},
        "logging": {"tensorboard": False, "progress": "off", "peak_tflops": 0.1}})
    text = json.dumps(config, indent=2) + "\n"
    if written.is_file() and written.read_text() != text:
        raise SystemExit(f"{written} differs from the configuration that is asked for now; give another --work")
    if not result.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        written.write_text(text)
        call(args, ["train", folder / "config.json"])
        found = json.loads(call(args, ["eval", folder / "run", "--data", args.valid_data, "--json"]).strip().splitlines()[-1])
        part = result.with_suffix(".part")
        part.write_text(json.dumps({"loss": found["loss"]}) + "\n")
        part.rename(result)
    loss = json.loads(result.read_text())["loss"]
    print(f"  {name}: {loss:.4f}", flush=True)
    return loss
