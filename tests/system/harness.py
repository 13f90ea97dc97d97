"""Helpers of the system tests: a scratch folder, synthetic shards, a tiny run, and the built program.

ATHANOR_PROGRAM names the program (default build/athanor); ATHANOR_REPEAT multiplies how often randomised tests repeat.
"""
import contextlib
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ.get("ATHANOR_PROGRAM", ROOT / "build" / "athanor")).resolve()
PYTHON = os.environ.get("ATHANOR_PYTHON", sys.executable)  # has the packages that some tests compare with
# Whether tests may make another distribution's root folder: minutes, and the network of apt.
DEBOOTSTRAP = os.environ.get("ATHANOR_FULL") and os.geteuid() == 0 and shutil.which("debootstrap")
REPEAT = float(os.environ.get("ATHANOR_REPEAT", "1"))
SEED = int(os.environ.get("ATHANOR_SEED", "20260821"))

DONE, ERROR, USAGE, DIVERGED, REQUEUE = 0, 1, 2, 3, 85
FIRST_SECOND = 1.0  # seconds in which a run that cannot succeed must say so
TIMEOUT = 300  # seconds, for whatever is expected to end: against hangs alone

TINY = {
    "model": {"model_type": "gpt2", "vocab_size": 257, "hidden_size": 32, "num_hidden_layers": 2,
              "num_attention_heads": 2, "max_position_embeddings": 32},
    "train_iters": 60,
    "global_batch_size": 4,
    "micro_batch_size": 2,
    "learning_rate": 1e-3,
    "schedule": {"lr_warmup_iters": 5},
    "precision": "fp32",
    "threads": 1,
    "logging": {"peak_tflops": 0.1},  # given, so that no start measures it
    "eval_interval": 0,
    "save_interval": 10,
}


def with_options(config, options):
    """The configuration with other values of options; a section, such as {"lora": {"rank": 8}}, keeps its other options."""
    into = dict(config)
    for key, value in options.items():
        into[key] = {**into.get(key, {}), **value} if isinstance(value, dict) else value
    return into


def write_shard(path, tokens, vocab_size=257):
    """llm.c version 1, or version 7 where the vocabulary needs 32 bits."""
    magic, version, code = (20240520, 1, "H") if vocab_size <= 65536 else (20240801, 7, "I")
    header = struct.pack("<256i", magic, version, len(tokens), *([0] * 253))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(header + struct.pack(f"<{len(tokens)}{code}", *tokens))


def random_tokens(count, vocab_size=257, seed=0):
    """Words of a small random language: something to learn, and the same every time."""
    rng = random.Random(seed)
    words = [[rng.randrange(vocab_size) for _ in range(rng.randrange(2, 7))] for _ in range(40)]
    tokens = []
    while len(tokens) < count:
        tokens += rng.choice(words)
    return tokens[:count]


def read_safetensors(path):
    """name -> (dtype, shape, bytes)"""
    data = path.read_bytes()
    begin = 8 + struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:begin])
    header.pop("__metadata__", None)
    return {name: (t["dtype"], t["shape"], data[begin + t["data_offsets"][0]:begin + t["data_offsets"][1]])
            for name, t in header.items()}


def python_has(*modules):
    return subprocess.run([PYTHON, "-c", "import " + ", ".join(modules)], capture_output=True).returncode == 0


class Finished:
    """A run that has ended."""

    def __init__(self, code, out, err, seconds):
        self.code, self.out, self.err, self.seconds = code, out, err, seconds

    def __str__(self):
        return f"exit code {self.code} after {self.seconds:.2f} s\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


class SystemTest(unittest.TestCase):
    maxDiff = 2000
    program = PROGRAM

    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="athanor-system-"))
        self.folder.chmod(0o755)  # for tests that run the program as another user
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    # ---- files

    def make_data(self, folder="data", tokens=4000, vocab_size=257):
        write_shard(self.folder / folder / "text_train_000000.bin", random_tokens(tokens, vocab_size), vocab_size)
        write_shard(self.folder / folder / "text_val_000000.bin", random_tokens(tokens // 4, vocab_size, seed=1),
                    vocab_size)

    def make_config(self, name="tiny.json", **changes):
        """A config file of the tiny run with data; model=... and other sections change some of their keys."""
        if not (self.folder / "data").exists():
            self.make_data()
        config = dict(TINY, save="run", train_data="data/*_train_*.bin", valid_data="data/*_val_*.bin")
        config = with_options(config, changes)
        path = self.folder / name
        path.write_text(json.dumps(config, indent=1))
        return path

    def checkpoints(self, run="run"):
        return sorted(p.name for p in (self.folder / run).glob("step-*"))

    def records(self, run="run"):
        """The effective series of metrics.jsonl, as configs/LOGS.md says how to read it."""
        out = []
        for line in (self.folder / run / "metrics.jsonl").read_text().splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                continue
            since = record.get("supersedes_from")
            if since is not None:
                out = [r for r in out if r["event"] not in ("step", "eval") or r["step"] < since]
            out.append(record)
        return out

    def losses(self, run="run"):
        return {r["step"]: r["loss"] for r in self.records(run) if r["event"] == "step"}

    # ---- processes

    def start(self, *arguments, preexec=None, env=None):
        return self.start_command([str(self.program), *map(str, arguments)], preexec_fn=preexec,
                                  env=dict(os.environ, **env) if env else None)

    def start_command(self, command, **named):
        """Its output goes to files: a full pipe would block it while a test does not read."""
        printed = [tempfile.TemporaryFile("w+", errors="surrogateescape") for _ in range(2)]
        for file in printed:
            self.addCleanup(file.close)
        process = subprocess.Popen(command, cwd=self.folder, stdout=printed[0], stderr=printed[1],
                                   stdin=subprocess.DEVNULL, **named)
        process.printed = printed
        self.addCleanup(end_for_sure, process)
        return process

    def said(self, process):
        """The stderr output so far of a process that was started."""
        err = process.printed[1].fileno()
        return os.pread(err, os.fstat(err).st_size, 0).decode(errors="replace")

    def finish(self, process, begin=None, timeout=TIMEOUT):
        begin = begin or time.monotonic()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout)
        seconds = time.monotonic() - begin
        ended = process.poll() is not None
        if not ended:
            process.kill()
            process.wait()
        said = []
        for file in process.printed:
            with file:
                file.seek(0)
                said.append(file.read())
        out, err = said
        self.assertTrue(ended, f"still running after {timeout} s\n{out}\n{err}")
        return Finished(process.returncode, out, err, seconds)

    def run_program(self, *arguments, code=DONE, preexec=None, env=None):
        begin = time.monotonic()
        done = self.finish(self.start(*arguments, preexec=preexec, env=env), begin)
        if code is not None:
            self.assertEqual(done.code, code, f"{arguments}\n{done}")
        return done

    def refused(self, *arguments, code, says, preexec=None):
        """The command must fail at once with this code, and say all of these on stderr."""
        for turn in range(6):
            limit = FIRST_SECOND * (measure_slowness() if turn else SLOWNESS)  # other work may have come meanwhile
            done = self.run_program(*arguments, code=code, preexec=preexec)
            for part in says:
                self.assertIn(part, done.err, f"{arguments}\n{done}")
            self.assertNotIn("internal", done.err)
            if done.seconds < limit:
                return done
        self.fail(f"{arguments}: not within {limit:.1f} s\n{done}")

    def assert_soon(self, act, seconds):
        """act(turn) gives how long something took: on an idle machine at most so many seconds."""
        for turn in range(4):
            limit = seconds * (measure_slowness() if turn else SLOWNESS)  # other work may have come meanwhile
            took = act(turn)
            if took < limit:
                return
        self.fail(f"took {took:.1f} s, expected at most {limit:.1f} s")

    def wait_for_step(self, process, step, run="run", timeout=TIMEOUT):
        """Until metrics.jsonl has this step or the process ends; returns whether the step was seen."""
        path = self.folder / run / "metrics.jsonl"
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            ended = process.poll() is not None  # before looking: what it has done at its end counts
            if path.exists() and any(s >= step for s in self.losses(run)):
                return True
            if ended:
                return False
            time.sleep(0.002)
        process.kill()
        self.fail(f"step {step} did not come within {timeout} s")


def measure_slowness():
    """How much longer than on an idle machine a start takes here, at least 1: bounds of seconds are scaled by it."""
    times = []
    for _ in range(5):
        begin = time.monotonic()
        subprocess.run([str(PROGRAM), "--version"], stdout=subprocess.DEVNULL, check=True)
        times.append(time.monotonic() - begin)
    begin, cpu = time.monotonic(), time.process_time()
    while time.process_time() - cpu < 0.1:  # with other work a start may still get its turn at once, and more does not
        pass
    return max(1.0, sorted(times)[2] / 0.05, (time.monotonic() - begin) / 0.1)


SLOWNESS = measure_slowness() if PROGRAM.exists() else 1.0


def repeats(count):
    return max(1, round(count * REPEAT))


def end_for_sure(process):
    if process.poll() is None:
        process.kill()
        process.wait()


def wait_gone(process, sig=signal.SIGKILL):
    process.send_signal(sig)
    return process.wait(timeout=TIMEOUT)
