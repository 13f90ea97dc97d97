"""The programs that compare.py times: each side answers turn(steps, warmup) with the milliseconds of its steps."""
import json
import os
import re
import struct
import subprocess
import time
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


def tail(text, lines=6):
    return "\n".join(text.strip().splitlines()[-lines:])


def run(command, deadline, **more):
    try:
        done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=deadline.require(), **more)
    except subprocess.TimeoutExpired:
        raise NotRun("no time was left") from None
    except OSError as error:
        raise NotRun(str(error)) from None
    if done.returncode != 0:
        raise NotRun(f"exit status {done.returncode}: {tail(done.stderr or done.stdout)}")
    return done.stdout


class Athanor:
    """A fresh `athanor bench step` every turn; its start is not in the step times."""

    name = "athanor"

    def __init__(self, program, config, deadline):
        self.program, self.config, self.deadline = program, config, deadline

    def turn(self, steps, warmup):
        out = run([self.program, "bench", "step", self.config, "--steps", steps, "--warmup", warmup, "--json"], self.deadline)
        return json.loads(out.strip().splitlines()[-1])

    def start_seconds(self):
        """From exec to the end of the first step, with caches warm: the second of two starts."""
        for _ in range(2):
            begin = time.monotonic()
            self.turn(1, 0)
        return time.monotonic() - begin

    def close(self):
        pass


class Torch:
    """torch_worker.py; lives through all turns where both sides fit on the device, else starts anew for each."""

    name = "torch"

    def __init__(self, python, config, options, alive, deadline):
        self.command = [python, str(HERE / "torch_worker.py"), "time", str(config), *map(str, options)]
        self.alive, self.deadline, self.process = alive, deadline, None

    def start(self):
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True)
        os.set_blocking(self.process.stderr.fileno(), False)

    def turn(self, steps, warmup):
        if self.process is None:
            self.start()
            warmup = max(warmup, 1)  # compiling
        try:
            self.process.stdin.write(json.dumps({"steps": steps, "warmup": warmup}) + "\n")
            self.process.stdin.flush()
            line = self.read_line()
            if not line:
                raise NotRun(f"torch_worker.py ended: {tail(self.process.stderr.read() or '')}")
        except (BrokenPipeError, NotRun) as error:
            why = str(error) if isinstance(error, NotRun) else f"ended: {tail(self.process.stderr.read() or '')}"
            self.close()
            raise NotRun(why) from None
        if not self.alive:
            self.close()
        return json.loads(line)

    def read_line(self):
        """The answer, or NotRun when the time is over."""
        os.set_blocking(self.process.stdout.fileno(), False)
        text = ""
        while not text.endswith("\n"):
            text += self.process.stdout.read() or ""
            if self.process.poll() is not None:
                return text + (self.process.stdout.read() or "")
            if self.deadline.left() < 1:
                raise NotRun("no time was left")
            self.process.stderr.read()  # or a full pipe would stop it
            time.sleep(0.01)
        return text

    def close(self):
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None


def write_tokens(folder, count=2_000_000, vocab=50257):
    """One set of random ids as llm.c and LLMQ read them; returns both files."""
    state, ids = 12345, []
    for _ in range(count):
        state = (1103515245 * state + 12345) & 0x7FFFFFFF
        ids.append((state >> 8) % vocab)
    llmc, llmq = folder / "tokens_llmc.bin", folder / "tokens_llmq.bin"
    llmc.write_bytes(struct.pack("<256i", 20240520, 1, count, *[0] * 253) + struct.pack(f"<{count}H", *ids))
    magic = struct.unpack("<2i", b"BIN.TOK\n")
    llmq.write_bytes(struct.pack("<256i", *magic, 2, 4, count, 151936, 0, *[0] * 249) + struct.pack(f"<{count}i", *ids))
    return llmc, llmq


class Peer:
    """A program that prints a line for every step; started anew for every turn and ended after enough of them."""

    def __init__(self, name, command, line, tokens_per_step, deadline, environment):
        self.name, self.command, self.line, self.deadline = name, command, line, deadline
        self.tokens_per_step, self.environment = tokens_per_step, environment

    def turn(self, steps, warmup):
        warmup = max(warmup, 2)  # the first steps of both are slow
        try:
            process = subprocess.Popen([str(c) for c in self.command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                       text=True, env=self.environment, cwd=Path(self.command[0]).parent)
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

    def close(self):
        pass


def peers(folder, model, data, deadline):
    """Sides for the peers' programs that `folder` holds and that know this model."""
    if folder is None:
        return []
    found, tokens = [], model["tokens"]
    environment = dict(os.environ, LD_LIBRARY_PATH=f"{folder}:{os.environ.get('LD_LIBRARY_PATH', '')}")
    if "llmc" in model and (folder / "train_gpt2cu").exists():
        command = ["stdbuf", "-oL", folder / "train_gpt2cu", "-i", data[0], "-j", data[0], "-t", model["seq"], "-d", tokens,
                   "-r", 0, "-x", 1000, "-v", 1000, "-m", 1, "-s", 0, "-h", 0, "-l", "6e-4", "-u", 700, "-c", "0.1",
                   *model["llmc"]]
        found.append(Peer("llm.c", command[2:], LLMC_LINE, tokens, deadline, environment))
    if "llmq" in model and (folder / "train").exists():
        command = [folder / "train", f"--train-file={data[1]}", f"--eval-file={data[1]}", "--ckpt-interval=0",
                   "--from-scratch", f"--seq-length={model['seq']}", "--model-dtype=bf16", "--matmul-dtype=bf16",
                   "--opt-m-dtype=bf16", "--opt-v-dtype=bf16", "--gpus=1", "--use-cuda-graphs", "--steps=1000",
                   "--eval-every-n-steps=0", "--log-gpu-util=0", *model["llmq"]]
        found.append(Peer("LLMQ", command, LLMQ_LINE, tokens, deadline, environment))
    return found
