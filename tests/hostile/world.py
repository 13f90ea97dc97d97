"""The world that a hostile user acts in: a folder with data, texts, a tokenizer, configurations and a finished run, made
once with the program itself and copied for each scenario; and the commands that run in it.

Scenarios are plain data: {"base": NAME, "actions": [...]}. Each action is an object whose "do" names a method of World.
"""
import contextlib
import ctypes
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import damage
import rules

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "system"))
from harness import TINY, random_tokens  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
NOBODY = 65534
STEPS = 30
COMMON = dict(TINY, train_iters=STEPS, save_interval=10, eval_interval=15, eval_iters=2, schedule={"lr_warmup_iters": 3},
              save="run", train_data="data/*_train_*.bin", valid_data="data/*_val_*.bin", memory_limit_gib=1,
              tuning_cache="")
BASES = {
    "gpt2": {},
    "llama": {"model": {"model_type": "llama", "vocab_size": 257, "hidden_size": 32, "intermediate_size": 48,
                        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
                        "max_position_embeddings": 32},
              "precision": "bf16", "optimizer": "muon", "log_interval": 1,
              "checkpoint": {"async_save": "on", "keep_latest_k": 2},
              "master_weights": "split"},
    "ranks": {"deterministic_reduction": "rank_invariant", "logical_shards": 2, "zero_stage": 2, "threads": 1},
}
OUR_PARTS = ("run", "home", "out", "tmp")  # where a command may write


class Unusable(Exception):
    """This machine does not allow an action: the scenario is left out."""


class Outcome:
    """A command that has ended, or had to be ended."""

    def __init__(self, words, action):
        self.words, self.action = words, action
        self.signals = []  # numbers of those that were sent, in order
        self.code, self.out, self.err, self.seconds, self.rss_kib = None, "", "", 0.0, 0
        self.hung, self.left_behind, self.not_started = False, False, False
        self.ranks_hit, self.second = [], None  # of a launcher; a second run of the same folder beside this one

    @property
    def verb(self):
        return self.words[0] if self.words else ""

    def __str__(self):
        tail = "\n".join((self.out + self.err).splitlines()[-12:])
        return f"athanor {' '.join(map(str, self.words))}\nexit code {self.code} after {self.seconds:.2f} s\n{tail}"


def adopt_orphans():
    """Ranks whose launcher was killed become children of this process, so that it sees whether they end."""
    PR_SET_CHILD_SUBREAPER = 36
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class Program:
    """What is tested, and worlds that it has made."""

    def __init__(self, path, folder, patience):
        self.patience = patience  # seconds after which a command hangs
        self.folder = folder
        self.path = folder / "program"
        shutil.copy(path, self.path)  # other users may not reach where it lies
        self.path.chmod(0o755)
        self.references, self.said = {}, {}

    def base(self, name):
        """Folder of the world `name`, made when it is first asked for."""
        folder = self.folder / f"base-{name}"
        if folder.exists():
            return folder
        making = self.folder / f"making-{name}"
        shutil.rmtree(making, ignore_errors=True)
        (making / "text").mkdir(parents=True)
        for part in ("victim", "out", "tmp", "home"):
            (making / part).mkdir()
        (making / "victim" / "secret").write_text("do not touch\n")
        words = ["the", "stone", "is", "found", "where", "nobody", "looks", "for", "gold"]
        rng = random.Random(5)
        text = " ".join(rng.choice(words) for _ in range(900))
        (making / "text" / "a.txt").write_text(text)
        (making / "text" / "a.jsonl").write_text("".join(json.dumps({"text": text[i:i + 200]}) + "\n"
                                                         for i in range(0, len(text), 200)))
        subprocess.run(["gzip", "-kn", "a.jsonl"], cwd=making / "text", check=True)
        (making / "text" / "prompts.txt").write_text("the stone\nis found\n")
        (making / "tok").mkdir()
        shutil.copy(ROOT / "tests" / "tokenizer" / "fixtures" / "gpt2.json", making / "tok" / "tokenizer.json")
        shutil.copy(ROOT / "tests" / "tokenizer" / "fixtures" / "ranks.tiktoken", making / "tok" / "ranks.tiktoken")
        config = dict(COMMON, **BASES[name])
        (making / "config.json").write_text(json.dumps(config, indent=1))
        for words in (["tokenize", "--input", "text/a.txt", "--output-prefix", "data/t", "--valid-every", "4", "--block",
                       "256"],
                      ["train", "config.json"]):
            done = subprocess.run([self.path, *words], cwd=making, env=environment(making), capture_output=True,
                                  text=True, timeout=300)
            if done.returncode != 0:
                sys.exit(f"hostile.py: the world cannot be made: athanor {' '.join(words)} ended with exit code "
                         f"{done.returncode}:\n{done.stderr}")
        making.rename(folder)
        return folder

    def reference(self, name):
        """What an undisturbed run of a base leaves: checksums of its last checkpoint, the loss of every step."""
        if name not in self.references:
            run = self.base(name) / "run"
            last = run / f"step-{STEPS:08d}"
            self.references[name] = (rules.tensors(last), rules.series(run / "metrics.jsonl"))
        return self.references[name]

    def losses(self, name):
        """What eval says of each checkpoint of a base."""
        if name not in self.said:
            folder = self.base(name)
            outs = [subprocess.run([self.path, "eval", f"run/{step}"], cwd=folder, env=environment(folder),
                                   capture_output=True, text=True, timeout=300).stdout
                    for step in sorted(rules.steps_of(folder / "run"))]
            self.said[name] = {found[1] for out in outs if (found := re.search(r"^loss (\S+)", out, re.MULTILINE))}
        return self.said[name]


def environment(folder):
    kept = {k: v for k, v in os.environ.items() if k in ("PATH", "LANG", "LD_LIBRARY_PATH", "ASAN_OPTIONS")}
    return dict(kept, HOME=str(folder / "home"), TMPDIR=str(folder / "tmp"), NO_COLOR="1")


class World:
    def __init__(self, program, base, folder):
        self.program, self.base, self.folder = program, base, folder
        shutil.copytree(program.base(base), folder, symlinks=True)
        self.taints = set()        # "config", "flags", "data", "text", "state", "records", "limits", "user", "disk"
        self.touched_steps = set()  # names of checkpoints that were damaged by hand
        self.mounted = False
        self.outcomes = []

    def close(self):
        if self.mounted:
            subprocess.run(["umount", "-l", str(self.folder / "run")], capture_output=True)
        for path in [self.folder, *self.folder.rglob("*")]:
            if path.is_dir() and not path.is_symlink():
                with contextlib.suppress(OSError):
                    path.chmod(0o755)
        shutil.rmtree(self.folder, ignore_errors=True)

    def act(self, action):
        """Violations that this action led to."""
        return getattr(self, "do_" + action["do"])(action) or []

    # ---- what a user may do to files

    def do_set(self, action):
        path = self.folder / "config.json"
        if not path.is_file():
            return
        try:
            config = json.loads(path.read_text())
            at = config
            *parents, last = action["key"].split(".")
            for key in parents:
                at = at[key]
            deep = action["value"].get("nested") if isinstance(action["value"], dict) else None
            at[last] = "@deep@" if deep else action["value"]
            text = json.dumps(config, indent=1)
            path.write_text(text.replace('"@deep@"', "[" * deep + "1" + "]" * deep) if deep else text)
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return  # the file is no such object any more
        self.taints.add("paths" if action["key"] in ("save", "load", "init_from", "train_data", "valid_data", "profile",
                                                     "multiple_choice_data", "tuning_cache") else "config")

    def do_fresh(self, action):
        shutil.rmtree(self.folder / "run", ignore_errors=True)

    def do_damage(self, action):
        for path in sorted(self.folder.glob(action["file"]))[:action.get("most", 1)]:
            name = path.relative_to(self.folder)
            try:
                if damage.apply(path, action, self.folder):
                    self.taint(name.parts)
            except OSError:  # it was gone, is no such thing, or grew at that moment
                self.taint(name.parts)

    def do_repair(self, action):
        """Everything but the run as it was."""
        base = self.program.base(self.base)
        for part in ("data", "text", "tok", "config.json"):
            target = self.folder / part
            if target.is_dir() and not target.is_symlink():
                shutil.rmtree(target)
            else:
                target.unlink(missing_ok=True)
            if (base / part).is_dir():
                shutil.copytree(base / part, target)
            else:
                shutil.copy2(base / part, target)
        self.taints -= {"config", "paths", "data", "text", "limits", "user"}

    def taint(self, parts):
        if parts[0] == "run":
            step = len(parts) > 1 and (parts[1].startswith(("step-", ".")) or parts[1] == "latest")
            self.taints.add("state" if step or len(parts) == 1 else "records")
            self.touched_steps.add(parts[1] if len(parts) > 1 else "run")
        elif parts[0] == "config.json":
            self.taints.add("paths")  # whatever it says now
        else:
            self.taints.add("text" if parts[0] in ("text", "tok") else "data")

    def do_disk(self, action):
        """The run's folder is a file system of that size."""
        run = self.folder / "run"
        size = f"size={action['kib']}k"
        if self.mounted:
            subprocess.run(["mount", "-o", f"remount,{size}", str(run)], check=True)
            return
        shutil.rmtree(run, ignore_errors=True)
        run.mkdir()
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", size, "athanor-hostile", str(run)], capture_output=True)
        if done.returncode != 0:
            raise Unusable("mounting a small file system is not permitted here")
        self.mounted = True
        self.taints.add("disk")

    def do_mode(self, action):
        for path in [self.folder] if action["file"] == "." else sorted(self.folder.glob(action["file"])):
            path.chmod(int(action["mode"], 8))

    def do_give(self, action):
        """All files belong to another user, who runs the commands from here on."""
        if os.getuid() != 0:
            raise Unusable("only root can start commands as another user")
        for path in [self.folder, *self.folder.rglob("*")]:
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
        self.taints.add("user")

    # ---- commands

    def do_run(self, action):
        for kind in ("limits", "flags"):
            if action.get(kind):
                self.taints.add(kind)
        before = self.inventory()
        steps = rules.steps_of(self.folder / "run")
        outcome = self.command(action)
        self.outcomes.append(outcome)
        return rules.of_command(self, outcome) + rules.of_files(self, outcome, before, self.inventory(), steps)

    def do_finish(self, action):
        """The run goes on, left alone, and ends as if nothing had happened."""
        self.do_repair(action)
        run = self.folder / "run"
        if run.is_symlink() or (run.exists() and not run.is_dir()):
            damage.remove(run)
        if "state" in self.taints:
            for name in self.touched_steps | {"latest"}:
                damage.remove(run / name)  # a pipe too, which rmtree would open
        if self.mounted:
            self.do_disk({"kib": 65536})
        for path in (self.folder / "run").glob("*"):  # what is refused by name, and is to be removed
            expected = path.is_dir() if path.name.startswith(("step-", "tensorboard", ".step")) else path.is_file()
            if path.is_symlink() or not expected:
                damage.remove(path)
        outcome = self.command({"words": ["train", "config.json"]})
        found = rules.of_command(self, outcome)
        if outcome.code != 0:
            found.append(rules.Violation("finish", f"the run does not go on once it is left alone\n{outcome}"))
        return found or rules.of_results(self)

    def command(self, action):
        words = [str(w) for w in action["words"]]
        outcome = Outcome(words, action)
        as_nobody = "user" in self.taints
        outs = [(self.folder.parent / f"{self.folder.name}.{name}").open("w+b") for name in ("out", "err")]
        begin = time.monotonic()
        stdin = self.folder / action.get("stdin", "")
        stdin = stdin.open("rb") if stdin.is_file() else subprocess.DEVNULL
        process = subprocess.Popen([self.program.path, *words], cwd=self.folder, env=environment(self.folder),
                                   stdin=stdin, stdout=outs[0], stderr=outs[1],
                                   preexec_fn=lambda: prepare(action.get("limits", {}), as_nobody))
        if stdin is not subprocess.DEVNULL:
            stdin.close()
        waiting = sorted(action.get("events", []), key=lambda e: e.get("ms", 0))
        stopping = action.get("stop_ms")
        while True:
            pid, status, used = os.wait4(process.pid, os.WNOHANG)
            now = (time.monotonic() - begin) * 1000
            if pid:
                break
            for event in list(waiting):
                if now < event.get("ms", 0) or ("step" in event and not self.step_reached(event["step"])):
                    continue
                waiting.remove(event)
                self.disturb(process.pid, event, outcome)
            if stopping is not None and now > stopping:  # whatever would go on for long
                stopping = None
                self.send(process.pid, signal.SIGTERM, outcome)
            if now > self.program.patience * 1000:
                outcome.hung = True
                os.kill(process.pid, signal.SIGKILL)
                _, status, used = os.wait4(process.pid, 0)
                break
            time.sleep(0.002)
        process.returncode = os.waitstatus_to_exitcode(status)
        outcome.code, outcome.seconds, outcome.rss_kib = process.returncode, time.monotonic() - begin, used.ru_maxrss
        outcome.not_started = outcome.code < 0 and not outcome.out and self.cannot_start(action.get("limits", {}))
        outcome.left_behind = not wait_for_orphans(self.program.patience)
        for name, file in zip(("out", "err"), outs):
            file.seek(0)
            setattr(outcome, name, file.read(4 << 20).decode(errors="replace"))
            file.close()
            os.unlink(file.name)
        return outcome

    def cannot_start(self, limits):
        """Whether the system ends any program of this size under such limits."""
        if not limits:
            return False
        done = subprocess.run([self.program.path, "--version"], capture_output=True, env=environment(self.folder),
                              preexec_fn=lambda: prepare(limits, False))
        return done.returncode < 0

    def disturb(self, pid, event, outcome):
        if event["do"] == "signal" and "child" in event:  # to a rank, not to its launcher
            ranks = children(pid)
            if event["child"] < len(ranks):
                outcome.ranks_hit.append(int(getattr(signal, "SIG" + event["signal"])))
                with contextlib.suppress(ProcessLookupError):
                    os.kill(ranks[event["child"]], getattr(signal, "SIG" + event["signal"]))
        elif event["do"] == "signal":
            self.send(pid, getattr(signal, "SIG" + event["signal"]), outcome)
        elif event["do"] == "second run":
            outcome.second = subprocess.run([self.program.path, "train", "config.json"], cwd=self.folder, capture_output=True,
                                          env=environment(self.folder), text=True, timeout=self.program.patience,
                                          stdin=subprocess.DEVNULL)
        elif event["do"] == "freeze":
            os.kill(pid, signal.SIGSTOP)
            time.sleep(event["for_ms"] / 1000)
            os.kill(pid, signal.SIGCONT)
        elif event["do"] == "move":
            with contextlib.suppress(OSError):
                (self.folder / event["file"]).rename(self.folder / (event["file"] + ".away"))
                self.taint(Path(event["file"]).parts)
        else:
            self.act(event)

    @staticmethod
    def send(pid, number, outcome):
        outcome.signals.append(int(number))
        os.kill(pid, number)

    def step_reached(self, step):
        path = self.folder / "run" / "metrics.jsonl"
        try:
            if not path.is_file():  # a pipe would hold us
                return False
            with path.open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - 3000))
                lines = file.read().splitlines()[1:]
            return any(json.loads(line).get("step", 0) >= step for line in lines[-2:])
        except (OSError, ValueError):
            return False

    def inventory(self):
        """Names, kinds, sizes and times of everything that a command must leave alone."""
        found = {}
        for path in self.folder.rglob("*"):
            name = path.relative_to(self.folder)
            if name.parts[0] in OUR_PARTS:
                continue
            try:
                info = path.lstat()
            except OSError:
                continue
            kind = info.st_mode >> 12
            found[str(name)] = (kind, 0 if path.is_dir() else info.st_size, 0 if path.is_dir() else info.st_mtime_ns)
        return found


def prepare(limits, as_nobody):
    """In the child, before the program starts."""
    for number in (signal.SIGXFSZ, signal.SIGPIPE):  # Python ignores them; a shell does not
        signal.signal(number, signal.SIG_DFL)
    os.setpgid(0, 0)
    for name, value in limits.items():
        soft, hard = value if isinstance(value, list) else (value, value)
        resource.setrlimit(getattr(resource, "RLIMIT_" + name.upper()), (soft, hard))
    if as_nobody:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


def children(pid):
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def wait_for_orphans(patience):
    """Whether all that the command had started ended; ends them otherwise."""
    end = time.monotonic() + patience
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return True
        if pid == 0:
            if time.monotonic() > end:
                break
            time.sleep(0.005)
    for line in subprocess.run(["ps", "-o", "pid=", "--ppid", str(os.getpid())], capture_output=True,
                               text=True).stdout.split():
        with contextlib.suppress(OSError):
            os.kill(int(line), signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)
    return False
