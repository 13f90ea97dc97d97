"""Compares loss curves of athanor and PyTorch step by step, with the same batches and initial weights.

The difference of two PyTorch runs from different random weights is the natural spread of the curve. athanor starts from
the first run's weights and must stay closer to that run than the spread around each step.
"""
import json
import shutil

from programs import ROOT

SEEDS = (1, 2)
FIRST_LOSS = {"fp32": 1e-5, "bf16": 2e-3}  # relative: the same weights and the same tokens
# The shipped configs at 32k tokens a step; `micro`: sequences that PyTorch computes at once.
ON_GPU = {"gpt2": {"config": "gpt2-124m", "steps": 300, "seq_length": 1024, "micro": 16, "learning_rate": 6e-4},
          "llama": {"config": "llama-1b", "steps": 60, "seq_length": 4096, "micro": 1, "learning_rate": 3e-4}}
TOKENS_PER_STEP = 32768


def outside(ours, reference, others):
    """Steps (from 1) at which `ours` is further from `reference` than the spread of PyTorch's runs around that step."""
    spread = [max(abs(o[s] - reference[s]) for o in others) for s in range(len(reference))]
    reach = max(2, len(reference) // 20)  # curves cross: a step's spread is the largest near it
    width = [max(spread[max(0, s - reach):s + reach + 1]) for s in range(len(spread))]
    return [s + 1 for s in range(len(ours)) if not abs(ours[s] - reference[s]) <= width[s]], spread


def judge(curves, precision):
    """What verify.py reports; raises ValueError where athanor does not follow."""
    ours, reference, *others = curves["athanor"], *(curves[f"torch seed {s}"] for s in SEEDS)
    lengths = {name: len(c) for name, c in curves.items()}
    if len(set(lengths.values())) > 1 or not ours:
        raise ValueError(f"curves of different lengths: {lengths}")
    bad, spread = outside(ours, reference, others)
    mean = lambda values: sum(values) / len(values)
    deviation = [abs(a - b) for a, b in zip(ours, reference)]
    first = deviation[0] / reference[0]
    found = {"steps": len(ours), "first_loss": ours[0], "first_loss_relative_difference": first,
             "last_losses": {name: round(mean(c[-10:]), 5) for name, c in curves.items()},
             "mean_deviation": mean(deviation), "largest_deviation": max(deviation),
             "mean_spread_of_torch": mean(spread)}
    if not first <= FIRST_LOSS[precision]:
        raise ValueError(f"the first loss differs by {first:.2e}, allowed {FIRST_LOSS[precision]:.0e}: {found}")
    if bad:
        raise ValueError(f"outside the spread of PyTorch's seeds at {len(bad)} of {len(ours)} steps, first {bad[0]}: "
                         f"{found}")
    if not ours[-1] < ours[0]:
        raise ValueError(f"the loss did not fall: {found}")
    return found


def gpu_config(root, family):
    setup = ON_GPU[family]
    config = json.loads((root / "configs" / f"{setup['config']}.json").read_text())
    for key in ("train_tokens", "valid_data"):
        config.pop(key, None)
    return config | {"device": "cuda", "seq_length": setup["seq_length"], "learning_rate": setup["learning_rate"],
                     "global_batch_size": TOKENS_PER_STEP // setup["seq_length"]}, setup["steps"], setup["micro"]


def losses_of(run):
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [r["loss"] for r in records if r["event"] == "step"]


def compare(call, python, name, config, steps, micro):
    """Runs all sides in a temporary folder (weights are large) and compares them."""
    folder = call.work / name
    folder.mkdir()
    config |= {"save": str(folder / "run"), "train_iters": steps,
               "schedule": {"lr_warmup_iters": steps // 10, "lr_decay_iters": steps, "lr_decay_style": "cosine",
                            "min_lr": 0.1 * config["learning_rate"]},
               "save_interval": 0, "eval_interval": 0}
    path, samples = folder / "config.json", folder / "samples.safetensors"
    path.write_text(json.dumps(config, indent=1))
    athanor, torch = call.program("athanor"), [python, ROOT / "scripts" / "bench" / "gpu" / "torch_worker.py"]
    where = ["--device", "cuda"] if call.device == "cuda" else ["--device", "cpu", "--threads", 1]
    call.run(f"{name}_samples", [athanor, "data", "dump", path, samples, "--steps", steps])
    call.run(f"{name}_weights", [*torch, "weights", path, folder / "weights", "--seed", SEEDS[0], *where])
    weights = folder / "weights" / "model.safetensors"
    call.run(f"{name}_athanor", [athanor, "train", path, "--init-from", folder / "weights"])
    curves = {"athanor": losses_of(folder / "run")}
    shutil.rmtree(folder / "run")
    for seed in SEEDS:
        start = ["--weights", weights] if seed == SEEDS[0] else ["--seed", seed]
        out = folder / f"torch{seed}.json"
        # Not compiled: a compiler that fails is no fault of athanor's, and so few steps hardly repay its time.
        call.run(f"{name}_torch{seed}", [*torch, "curve", path, samples, out, *start, "--micro", micro, *where,
                                         "--compile", "none"])
        curves[f"torch seed {seed}"] = json.loads(out.read_text())["losses"]
    shutil.rmtree(folder)
    return judge(curves, config["precision"]) | {"curves": curves}
