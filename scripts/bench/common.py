"""What comparisons of what is learned share: on which machine they ran, and how results are written."""
import datetime
import json
import os
import pathlib
import platform


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
