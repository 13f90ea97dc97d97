#!/usr/bin/env python3
"""What two ranks on a slow network pay for each step and what they learn: with whole gradients, gradients and weights in 4 bits,
momentum in 1 bit, and local updates.

usage: scripts/quickstart.sh; scripts/bench/ranks/slow_network.py [--rate BITS] [--delay S] [--steps N] [--out FILE] [--table FILE]

The ranks, of one thread each, are on two hosts (network namespaces) that a cable of this rate and delay joins; needs root and
/dev/net/tun. The model is the quick start's with AdamW. Seconds per step are the mean of the second half of the steps, in
which 1-bit optimizers compress; losses are of the whole held-out text after the last step. A last row has the ranks on one host.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tests" / "ranks"), str(ROOT / "tests" / "system"), str(ROOT / "scripts" / "bench")]
from common import describe_machine, write_results  # noqa: E402
from network import ADDRESSES, Network  # noqa: E402
from ranks import free_port  # noqa: E402

COPIES = {"data_parallel_replicate_size": 2, "zero_stage": 0}
SHORT = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}


def ways(args):
    whole = {"optimizer": "adamw"}
    return {"adamw, gradients in fp32": whole,
            "adamw, gradients in bf16": {**whole, "grad_dtype": "bf16"},
            "adamw, gradients and weights in 4 bits": {**whole, "zero_quantized_gradients": True, "zero_quantized_weights": True},
            "onebit_adam": {**COPIES, "optimizer": "onebit_adam", "adam": {"freeze_step": max(1, args.steps // 5)}},
            "lamb": {"optimizer": "lamb", "learning_rate": args.lamb_rate},
            "onebit_lamb": {**COPIES, "optimizer": "onebit_lamb", "adam": {"freeze_step": max(1, args.steps // 5)},
                            "learning_rate": args.lamb_rate},
            "adamw, local updates of 30 steps": {**COPIES, **whole, "local_updates": {"steps": 30}},
            "adamw, local updates of 30 steps, streaming in 4 bits": {
                **COPIES, **whole, "local_updates": {"steps": 30, "fragments": 3, "outer_delay": 5, "outer_mixing": 0.5,
                                                     "outer_delta_dtype": "fp4", "outer_learning_rate": 0.4}},
            "adamw on one host": whole}


def train(args, folder, name, changes, network):
    config = json.loads(args.config.read_text())
    config["model"].update(SHORT if args.short else {})
    config |= {"train_iters": args.steps, "schedule": {"lr_warmup_iters": max(1, args.steps // 20)},
               "learning_rate": args.learning_rate, "micro_batch_size": 4, "save": str(folder / name),
               "train_data": args.train_data, "threads": 1, "valid_data": args.valid_data, "eval_interval": 0,
               "save_interval": 0, "logging": {"tensorboard": False, "progress": "off", "peak_tflops": 0.1},
               "device": "cpu"} | changes
    path = folder / f"{name}.json"
    path.write_text(json.dumps(config, indent=1))
    address = ADDRESSES[0] if network else "127.0.0.1"
    environment = dict(os.environ, WORLD_SIZE="2", MASTER_ADDR=address, MASTER_PORT="29600" if network else str(free_port()),
                       XDG_RUNTIME_DIR=str(folder))
    before = [network.inside(rank) if network else [] for rank in range(2)]
    ranks = [subprocess.Popen([*before[rank], str(args.athanor), "train", str(path)], stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, text=True, env=dict(environment, RANK=str(rank))) for rank in range(2)]
    for rank, process in enumerate(ranks):
        said = process.communicate()[1]
        if process.returncode != 0:
            sys.exit(f"slow_network.py: {name}: rank {rank} ended with status {process.returncode}: {said[-800:]}")
    lines = (json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines())
    times = {r["step"]: r["time"] for r in lines if r["event"] == "step"}
    first = args.steps // 2
    done = subprocess.run([str(args.athanor), "eval", str(folder / name), "--data", args.valid_data, "--json"],
                          capture_output=True, text=True, check=True)
    loss = json.loads(done.stdout.strip().splitlines()[-1])["loss"]
    return {"seconds_per_step": (times[args.steps] - times[first]) / (args.steps - first), "loss": loss}


def table(report):
    lines = [f"| {name} | {r['seconds_per_step'] * 1e3:.0f} ms | {r['loss']:.4f} |" for name, r in report["rows"].items()]
    return "\n".join(["| two ranks | a step | held-out loss |", "|---|---|---|", *lines]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--athanor", type=pathlib.Path, default=ROOT / "build" / "athanor")
    parser.add_argument("--config", type=pathlib.Path, default=ROOT / "configs" / "quickstart.json")
    parser.add_argument("--train-data", type=os.path.abspath, default=str(ROOT / "runs/quickstart/data/*_train_*.bin"))
    parser.add_argument("--valid-data", type=os.path.abspath, default=str(ROOT / "runs/quickstart/data/*_val_*.bin"))
    parser.add_argument("--rate", type=float, default=1e9, help="bits per second in each direction")
    parser.add_argument("--delay", type=float, default=0.005, help="seconds in each direction")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--learning-rate", type=float, default=0.002)
    parser.add_argument("--lamb-rate", type=float, default=0.02, help="learning rate of lamb and onebit_lamb")
    parser.add_argument("--only", nargs="+", default=[""], help="rows whose names contain one of these texts")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--table", type=pathlib.Path)
    parser.add_argument("--short", action="store_true", help="a tiny model: to try the script")
    args = parser.parse_args()
    args.athanor = args.athanor.resolve()
    rows = {}
    with tempfile.TemporaryDirectory(prefix="athanor-slow-network-") as folder:
        network = Network(delay=args.delay, loss=0, rate=args.rate, mtu=60000)  # large frames: the cable is a Python process
        try:
            chosen = {name: changes for name, changes in ways(args).items() if any(part in name for part in args.only)}
            for n, (name, changes) in enumerate(chosen.items()):
                rows[name] = train(args, pathlib.Path(folder), f"run-{n}", changes, None if "one host" in name else network)
                print(f"  {name}: {rows[name]}", flush=True)
        finally:
            network.stop()
    report = {**describe_machine(), "rate": args.rate, "delay": args.delay, "steps": args.steps, "load": os.getloadavg()[0],
              "rows": rows}
    print(table(report), end="")
    write_results(args, report, table(report))


if __name__ == "__main__":
    main()
