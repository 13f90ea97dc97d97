"""The programs that compare.py times: each side answers turn(steps, warmup) with the milliseconds of its steps."""
import contextlib
import json
import os
import random
import re
import struct
import subprocess
import tempfile
import threading
import time
from array import array
from pathlib import Path

HERE = Path(__file__).resolve().parent
LLMC_LINE = re.compile(r"step +(\d+)/\d+ \|.*?\| +([\d.]+) ms \|")
LLMQ_LINE = re.compile(r"\[T\] step +(\d+) \[.*?\| time: +(\d+) +(ms|s) \|")


class NotRun(Exception):
    """Why a side has no times."""


class Deadline:
    """Seconds that are left of the call."""

    def __init__(self, minutes):
        self.end = time.monotonic() + 60 * minutes

    def left(self):
        return self.end - time.monotonic()

    def require(self):
        if self.left() < 1:
            raise NotRun("no time was left")
        return self.left()


def show_libraries(python):
    """Lets programs started later find the CUDA libraries in a Python's packages, as PyTorch does."""
    try:
        done = subprocess.run([str(python), "-c", "import sys; print(sys.prefix)"], capture_output=True, text=True,
                              timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return
    prefix = Path(done.stdout.strip() or "/nonexistent")
    folders = [str(f) for f in sorted(prefix.glob("lib/python3*/*-packages/nvidia/*/lib"))]
    if folders:
        os.environ["VIRTUAL_ENV"] = os.environ.get("VIRTUAL_ENV") or str(prefix)  # where athanor looks
        before = os.environ.get("LD_LIBRARY_PATH")  # where cuDNN looks for libraries of its own
        os.environ["LD_LIBRARY_PATH"] = ":".join([*([before] if before else []), *folders])


def tail(text, lines=6):
    return "\n".join(text.strip().splitlines()[-lines:])


def run(command, deadline, **more):
    try:
        done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=deadline.require(),
                              **more)
    except subprocess.TimeoutExpired:
        raise NotRun("no time was left") from None
    except OSError as error:
        raise NotRun(str(error)) from None
    if done.returncode != 0:
        raise NotRun(f"exit status {done.returncode}: {tail(done.stderr or done.stdout)}")
    return done.stdout


class Athanor:
    """A fresh `athanor bench step` every turn; its start is not in the step times."""

    def __init__(self, program, config, deadline, name="athanor"):
        self.program, self.config, self.deadline, self.name = program, config, deadline, name

    def turn(self, steps, warmup):
        """Also, after the steps that are timed, what every op takes beside its limit, those that lose most first."""
        found = self.steps(steps, max(warmup, 2), "--ops")  # the second step captures CUDA graphs
        return found | {"gap": {k: found[k] for k in ("ceilings", "profiled_ms", "explained", "times", "ops")}}

    def steps(self, steps, warmup, *flags):
        out = run([self.program, "bench", "step", self.config, "--steps", steps, "--warmup", warmup, "--json", *flags],
                  self.deadline)
        return json.loads(out.strip().splitlines()[-1])

    def start_seconds(self):
        """From exec to the end of the first step, with caches warm: the second of two starts."""
        for _ in range(2):
            begin = time.monotonic()
            self.steps(1, 0)
        return time.monotonic() - begin

    def close(self):
        pass


class Torch:
    """torch_worker.py; lives through all turns where both sides fit on the device, else starts anew for each."""

    name = "torch"

    def __init__(self, python, config, options, alive, deadline):
        self.command = [python, str(HERE / "torch_worker.py"), "time", str(config), *map(str, options)]
        self.alive, self.deadline, self.process, self.errors = alive, deadline, None, None

    def start(self):
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors,
                                        text=True)

    def turn(self, steps, warmup):
        if self.process is None:
            self.start()
            warmup = max(warmup, 1)  # compiling
        timer = threading.Timer(self.deadline.require(), self.process.kill)
        timer.start()
        try:
            self.process.stdin.write(json.dumps({"steps": steps, "warmup": warmup}) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
        if not line:
            raise NotRun(self.why_it_ended())
        if not self.alive:
            self.close()
        return json.loads(line)

    def why_it_ended(self):
        self.process.wait()
        self.errors.seek(0)
        why = "no time was left" if self.deadline.left() < 1 else f"torch_worker.py ended: {tail(self.errors.read())}"
        self.close()
        return why

    def close(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            for file in (self.process.stdin, self.process.stdout, self.errors):
                with contextlib.suppress(BrokenPipeError):
                    file.close()
            self.process = None


def write_tokens(folder, count=4_000_000):
    """One set of random ids below 32768 as llm.c and LLMQ read them; returns both files."""
    raw = bytearray(random.Random(0).randbytes(2 * count))
    raw[1::2] = raw[1::2].translate(bytes(b & 0x7F for b in range(256)))
    ids = array("H", bytes(raw))
    llmc, llmq = folder / "tokens_llmc.bin", folder / "tokens_llmq.bin"
    llmc.write_bytes(struct.pack("<256i", 20240520, 1, count, *[0] * 253) + ids.tobytes())
    magic = struct.unpack("<2i", b"BIN.TOK\n")
    llmq.write_bytes(struct.pack("<256i", *magic, 2, 4, count, 151936, 0, *[0] * 249) + array("i", ids).tobytes())
    return llmc, llmq


class Peer:
    """A program that prints a line per step; restarted for every turn and killed after enough steps."""

    def __init__(self, name, command, line, tokens_per_step, folder, deadline):
        # Both flush their lines when full unless told otherwise.
        self.name, self.command, self.line, self.deadline = name, ["stdbuf", "-oL", *command], line, deadline
        self.tokens_per_step, self.folder = tokens_per_step, folder

    def turn(self, steps, warmup):
        warmup = max(warmup, 2)  # the first steps of both are slow
        try:
            process = subprocess.Popen([str(c) for c in self.command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                       text=True, cwd=self.folder, env=self.environment())
        except OSError as error:
            raise NotRun(str(error)) from None
        times, log = [], []
        try:
            for text in process.stdout:
                log.append(text)
                if found := self.line.search(text):
                    unit = found.group(3) if self.line.groups > 2 else "ms"
                    times.append(float(found.group(2)) * (1000 if unit == "s" else 1))
                if len(times) >= steps + warmup or self.deadline.left() < 1:
                    break
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
        if len(times) < steps + warmup:
            raise NotRun(f"{len(times)} of {steps + warmup} steps seen: {tail(''.join(log))}")
        return {"step_ms": times[warmup:], "tokens_per_step": self.tokens_per_step}

    def environment(self):
        return dict(os.environ, LD_LIBRARY_PATH=f"{self.folder}:{os.environ.get('LD_LIBRARY_PATH', '')}")

    def close(self):
        pass


def peers(folder, model, data, deadline):
    """Sides for the peers' programs that `folder` holds and that know this model."""
    found = []
    if folder and "llmc" in model and "precision" not in model and (folder / "train_gpt2cu").exists():
        command = [folder / "train_gpt2cu", "-i", data[0], "-j", data[0], "-t", model["seq"], "-d", model["tokens"],
                   "-r", 0, "-x", 1000, "-v", 1000, "-m", 1, "-s", 0, "-h", 0, "-l", "6e-4", "-u", 700, "-c", "0.1",
                   *model["llmc"]]
        found.append(Peer("llm.c", command, LLMC_LINE, model["tokens"], folder, deadline))
    if folder and "llmq" in model and (folder / "train").exists():
        command = [folder / "train", f"--train-file={data[1]}", f"--eval-file={data[1]}", "--ckpt-interval=0",
                   "--from-scratch", f"--seq-length={model['seq']}", "--model-dtype=bf16",
                   f"--matmul-dtype={'e4m3' if 'precision' in model else 'bf16'}",
                   "--opt-m-dtype=bf16", "--opt-v-dtype=bf16", "--gpus=1", "--use-cuda-graphs", "--steps=1000",
                   "--eval-every-n-steps=0", "--log-gpu-util=0", *model["llmq"]]
        found.append(Peer("LLMQ", command, LLMQ_LINE, model["tokens"], folder, deadline))
    return found
