"""Scenarios from random numbers: each function plays one kind of hostile user. They only choose; world.py acts."""
import re
from pathlib import Path

import damage
from world import BASES, COMMON, ROOT, STEPS

VALUES = [0, 1, -1, 2, 3, 7, 0.5, -0.5, 1e-30, 1e30, 1e308, 2**31, 2**53 + 1, 2**63, 2**64, -2**63, True, False, None, "",
          "x", "nan", "inf", "-1", "auto", "on", "fp16", "bf16", "../..", "\u001b[31m", "\u202e", "a" * 5000, [], {},
          [1, 2, 3], ["x"], {"a": 1}, [[]], {"nested": 2000}, {"nested": 100000}]
MODEL_KEYS = ["model_type", "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
              "head_dim", "intermediate_size", "max_position_embeddings", "norm_eps", "rope_theta", "rope_scaling",
              "sliding_window", "attention_bias", "qk_norm", "tie_word_embeddings", "initializer_range", "bos_token_id",
              "eos_token_id"]
DATA = ["data/t_train_*.bin", "data/t_val_*.bin", "data/*.json", "data/*"]
STEP_FILES = ["model.safetensors", "optimizer.safetensors", "state.json", "config.json", "config.resolved.json",
              "manifest.json", "tokenizer*"]
STOPS = ["TERM", "INT", "HUP", "USR1", "XCPU"]
DETACHED = ["CHLD", "CONT", "WINCH", "URG", "PIPE"]  # which end no run


def config_keys():
    """Every key of configs/README.md's reference, and those of the model."""
    text = (ROOT / "configs" / "README.md").read_text()
    keys = set(re.findall(r"^\| `([a-z_0-9.]+)` \|", text, re.MULTILINE))
    return sorted({k for k in keys if not k.startswith("model.")} | {f"model.{k}" for k in MODEL_KEYS})


def flags():
    """{verb: [(flag, takes a value)]} and {verb: [positional]} of docs/commands.md."""
    options, places = {}, {}
    for verb, table in re.findall(r"<!-- flags: ([a-z -]+) -->\n(.*?)<!-- end of flags -->",
                                  (ROOT / "docs" / "commands.md").read_text(), re.DOTALL):
        options[verb], places[verb] = [], []
        for names in re.findall(r"^\| ((?:`[^`]+`(?:, )?)+) \|", table, re.MULTILINE):
            name = re.findall(r"`([^`]+)`", names)[-1]
            (options if name.startswith("-") else places)[verb].append(name)
    return options, places


KEYS = config_keys()
FLAGS, PLACES = flags()


def damage_of(rng, file, hows=None):
    how = rng.choice(hows or (damage.TEXTS if file.endswith((".json", "*")) else damage.BYTES) + damage.PLACES)
    return {"do": "damage", "file": file, "how": how, "seed": rng.randrange(1 << 30), "count": rng.choice([1, 1, 3, 40])}


def bad_config(rng):
    actions = [{"do": "fresh"}] if rng.random() < 0.7 else []
    for _ in range(rng.choice([1, 1, 2, 4])):
        key = rng.choice(KEYS)
        value = rng.choice(VALUES)
        if rng.random() < 0.3:  # near to what is right
            value = rng.choice([1, 2, 3, 4, 8, 16, 31, 33, 64, 1e-4, 0.1, 0.9, 1.0, 5, 1000, "cosine", "linear", "fp32"])
        actions.append({"do": "set", "key": key if rng.random() < 0.95 else key + "x", "value": value})
    if rng.random() < 0.25:
        actions.append(damage_of(rng, "config.json"))
    words = rng.choice([["train", "config.json"]] * 4 +
                       [["config", "validate", "config.json"], ["plan", "config.json"], ["plan", "config.json", "--gpu", "h200"],
                        ["data", "dump", "config.json", "out/rows.safetensors"], ["scaling", "config.json"],
                        ["train", "-"]])
    run = {"do": "run", "words": words, "stop_ms": 1500}
    if words[-1] == "-":
        run["stdin"] = "config.json"
        actions = [a for a in actions if a.get("how") not in damage.PLACES]
    return actions + [run]


def bad_data(rng):
    actions = [{"do": "fresh"}] if rng.random() < 0.6 else []
    actions += [damage_of(rng, rng.choice(DATA)) for _ in range(rng.choice([1, 1, 2]))]
    words = rng.choice([["train", "config.json"], ["train", "config.json", "--allow-changed-data"], ["eval", "run"],
                        ["data", "info", "data/*.bin"], ["data", "verify", "data/*.bin"], ["data", "verify", "data/*"],
                        ["data", "info", "data/t_train_000000.bin", "--ngram"], ["bench", "data", "config.json"],
                        ["data", "dump", "config.json", "out/rows.safetensors"]])
    return actions + [{"do": "run", "words": words, "stop_ms": 5000}]


def bad_checkpoint(rng):
    actions = []
    step = f"run/step-{STEPS if rng.random() < 0.8 else 20:08d}"
    for _ in range(rng.choice([1, 1, 2, 3])):
        where = rng.random()
        if where < 0.75:
            actions.append(damage_of(rng, f"{step}/{rng.choice(STEP_FILES)}"))
        elif where < 0.85:
            actions.append(damage_of(rng, step, ["remove", "link", "dangling", "fifo", "loop"]))
        else:
            actions.append(damage_of(rng, "run/" + rng.choice(["latest", "metrics.jsonl", "config.resolved.json", ".lock",
                                                               "tensorboard", "environment.json"])))
    for _ in range(rng.choice([1, 2])):
        words = rng.choice([["eval", step], ["eval", "run"], ["sample", "--checkpoint", step, "--prompt", "the",
                                                              "--max-tokens", "4"],
                            ["sample", "--checkpoint", "run", "--prompts", "text/prompts.txt", "--max-tokens", "4"],
                            ["checkpoint", "list", "run"], ["checkpoint", "list", "run", "--verify"],
                            ["checkpoint", "inspect", step], ["checkpoint", "verify", step],
                            ["checkpoint", "consolidate", step, "out/one"], ["logits", step, "out/logits.safetensors"],
                            ["export", step, "out/hf"], ["export", "run", "out/m.gguf", "--format", "gguf"],
                            ["import", step, "out/imported"], ["report", "run"], ["train", "config.json"],
                            ["train", "config.json", "--set", f"train_iters={STEPS + 5}"]])
        run = {"do": "run", "words": words, "stop_ms": 8000}
        if "--set" in words:
            run["flags"] = True
        actions.append(run)
    return actions


def course(rng, ranks=False):
    """A run that is stopped, killed, frozen and robbed, and has the bits of an undisturbed one in the end."""
    actions = [{"do": "fresh"}] if rng.random() < 0.8 else [{"do": "damage", "file": f"run/step-{STEPS:08d}", "how": "remove"}]
    for _ in range(rng.choice([1, 2, 3])):
        events = []
        for _ in range(rng.choice([1, 1, 2, 3])):
            event = {"ms": rng.choice([0, 2, 10, 30]) + rng.randrange(150)}
            if rng.random() < 0.6:
                event = {"step": rng.randrange(1, STEPS)}
            kind = rng.random()
            if kind < 0.5:
                event |= {"do": "signal", "signal": rng.choice(STOPS + ["KILL", "KILL"] + DETACHED)}
            elif kind < 0.55:
                event |= {"do": "second run"}
            elif kind < 0.62:
                event |= {"do": "freeze", "for_ms": rng.choice([1, 50, 200])}
            elif kind < 0.75:
                event |= {"do": "move", "file": rng.choice(["data", "config.json", "data/t_train_000000.bin", "text"])}
            else:
                event |= damage_of(rng, rng.choice(["run/metrics.jsonl", "run/tensorboard", "run/latest", "run/.lock",
                                                    "run/config.resolved.json", "run/environment.json", "run/.step*",
                                                    "run/.*", "run/step-00000010", "run", "data/t_train_000000.bin",
                                                    "data/t_val_000000.bin", "config.json"]),
                                   ["remove", "remove", "folder", "link", "dangling", "fifo", "empty", "cut", "flip"])
            events.append(event)
        run = {"do": "run", "words": ["train", "config.json"], "events": events}
        if ranks and rng.random() < 0.7:
            run["words"] = ["launch", "-n", "2"] + run["words"]
            for event in events:
                if event["do"] == "signal" and rng.random() < 0.5:
                    event["child"] = rng.randrange(2)
        if rng.random() < 0.3:
            run["limits"] = limits(rng)
        actions += [run] if rng.random() < 0.3 else [run, {"do": "repair"}]
    return actions + [{"do": "finish"}]


def limits(rng):
    return rng.choice([{"fsize": rng.choice([0, 100, 4096, 50000, 150000, 300000])},
                       {"nofile": rng.choice([3, 4, 6, 8, 10, 16, 24, 70])},
                       {"as": rng.choice([50, 100, 150, 200, 250, 300, 400, 600, 1200]) << 20},
                       {"cpu": [1, rng.choice([1, 2])]}, {"core": 0}, {"memlock": 0}, {"data": rng.choice([8, 32, 100]) << 20}])


def limited(rng):
    words = rng.choice([["train", "config.json"], ["train", "config.json", "--set", "threads=64"],
                        ["eval", "run"], ["sample", "--checkpoint", "run", "--prompt", "the", "--max-tokens", "4"],
                        ["tokenize", "--input", "text/a.jsonl", "text/a.jsonl.gz", "text/a.txt", "--output-prefix", "out/t"],
                        ["checkpoint", "verify", f"run/step-{STEPS:08d}"], ["export", "run", "out/hf"], ["plan", "config.json"],
                        ["report", "run"], ["data", "info", "data/*.bin", "--ngram"], ["devices"],
                        ["checkpoint", "consolidate", f"run/step-{STEPS:08d}", "out/one"]])
    actions = [{"do": "fresh"}] if words[0] == "train" else []
    run = {"do": "run", "words": words, "limits": limits(rng), "stop_ms": 8000}
    if "--set" in words:
        run["flags"] = True
    if rng.random() < 0.3:
        actions.append({"do": "give"})
        if rng.random() < 0.5:
            run["limits"] = {"nproc": rng.choice([1, 2, 3, 5])}
    actions.append(run)
    return actions + ([{"do": "finish"}] if words == ["train", "config.json"] else [])


def forbidden(rng):
    """Files that the user may not read or write."""
    actions = [{"do": "fresh"}] if rng.random() < 0.4 else []
    actions.append({"do": "give"})
    for _ in range(rng.choice([1, 1, 2])):
        actions.append({"do": "mode", "file": rng.choice(["run", "run/step-*", "run/*.jsonl", "run/.lock", "run/tensorboard", "data",
                                                          "data/*", "config.json", "home", "text/*", ".", "out",
                                                          f"run/step-{STEPS:08d}/*.safetensors"]),
                        "mode": rng.choice(["000", "444", "555", "111", "222"])})
    words = rng.choice([["train", "config.json"]] * 3 + [["eval", "run"], ["report", "run"], ["checkpoint", "list", "run"],
                        ["checkpoint", "verify", f"run/step-{STEPS:08d}"], ["export", "run", "out/hf"],
                        ["tokenize", "--input", "text/a.txt", "--output-prefix", "out/t"],
                        ["sample", "--checkpoint", "run", "--prompt", "the", "--max-tokens", "4"]])
    return actions + [{"do": "run", "words": words, "stop_ms": 8000, "flags": True}]


def small_disk(rng):
    run = {"do": "run", "words": ["train", "config.json"]}
    if rng.random() < 0.3:
        run["events"] = [{"step": rng.randrange(1, STEPS), "do": "signal", "signal": rng.choice(STOPS + ["KILL"])}]
    return [{"do": "disk", "kib": rng.choice([8, 64, 200, 430, 460, 500, 700, 900, 1000, 1400])}, run, {"do": "finish"}]


def words_at_random(rng):
    verb = rng.choice([v for v in FLAGS if v not in ("launch",)])
    words = verb.split()
    places = {"config": "config.json", "checkpoint": "run", "model": "run", "runs": "run", "files": "data/*.bin",
              "out": "out/made", "save": "out/save", "folder": f"run/step-{STEPS:08d}" if "checkpoint" in verb else "run"}
    words += [places.get(p, "run") for p in PLACES[verb] if rng.random() < 0.95]
    needed = {"sample": ["--checkpoint", "run"], "tokenize": ["--input", "text/a.txt", "--output-prefix", "out/t"],
              "sweep": ["--set", "learning_rate=1e-3,2e-3", "-o", "out/sweep", "--summary"],
              "compare": ["--set", "precision=mxfp8", "-o", "out/compare", "--summary"],
              "bench attention": ["--tokens", "64", "--hidden", "64", "--lengths", "32"],
              "bench comm": ["--max-bytes", "4096", "--seconds", "0.02"]}
    if rng.random() < 0.95:
        words += needed.get(verb, [])
    odd = ["", "0", "1", "-1", "2", "1e9", "99999999999999999999", "nan", "inf", "0x10", "x", "a=b", "seed=7", "seed=x",
           "model.hidden_size=64", "=", "..", "out/x", "config.json", "text/prompts.txt", "fp32", "bf16", "byte", "jsonl",
           "megatron", "tok/tokenizer.json", "tok/ranks.tiktoken", "\\n", "(", "the stone", "h200", "\u001b[2J", "A" * 300]
    for _ in range(rng.choice([0, 1, 1, 2, 4])):
        if FLAGS[verb]:
            flag = rng.choice(FLAGS[verb])
            if flag in ("--watch",):
                continue
            value = rng.choice(odd)
            if flag in ("--output", "-o", "--scores", "--profile", "--output-prefix"):
                value = rng.choice(["out/x", "out/deep/er/x", "out", ""])
            words += [flag, value] if rng.random() < 0.8 else [flag]
    if rng.random() < 0.05:
        rng.shuffle(words)
    return [{"do": "run", "words": words, "flags": True, "stop_ms": 3000, "writes": "report"}]


def tokenizing(rng):
    actions = [damage_of(rng, rng.choice(["text/a.txt", "text/a.jsonl", "text/a.jsonl.gz", "tok/tokenizer.json",
                                          "tok/ranks.tiktoken", "data/*.json"]))
               for _ in range(rng.choice([1, 1, 2]))]
    text = rng.choice(["text/a.txt", "text/a.jsonl", "text/a.jsonl.gz"])
    tokenizer = rng.choice(["byte", "tok/tokenizer.json", "tok/ranks.tiktoken", "tok"])
    words = ["tokenize", "--input", text, "--output-prefix", "out/t", "--tokenizer", tokenizer]
    if tokenizer.endswith("tiktoken"):
        words += ["--split", "gpt2"]
    if rng.random() < 0.2:
        words = ["data", "info", "data/*.bin", "--tokenizer", tokenizer]
    return actions + [{"do": "run", "words": words, "stop_ms": 10000}]


PLAYERS = [(bad_config, 24), (bad_data, 12), (bad_checkpoint, 18), (course, 14), (limited, 10), (forbidden, 5),
           (small_disk, 4), (words_at_random, 14), (tokenizing, 8)]


def scenario(rng):
    player = rng.choices([p for p, _ in PLAYERS], [weight for _, weight in PLAYERS])[0]
    base = rng.choice(list(BASES))
    actions = player(rng, ranks=True) if player is course and base == "ranks" else player(rng)
    return {"player": player.__name__, "base": base, "actions": actions}
