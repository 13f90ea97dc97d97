"""What must be true of every command, however it was treated. Functions return the violations that they find."""
import hashlib
import json
import re
import signal
from dataclasses import dataclass

MOST_RSS_KIB = 1 << 20
LONGEST_LINE = 1500
CRASHES = ("terminate called", "Assertion", "Sanitizer", "runtime error:", "stack smashing", "stack overflow",
           "pure virtual", "double free", "corrupted", "internal check failed", "unexpected: ", "std::", "json.exception",
           "basic_string", "vector::", "_M_", "what():")
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
NOT_FINITE = re.compile(r"(?<![\w./\"-])[-+]?(nan|inf)(?![\w/.(-])", re.IGNORECASE)
STEP = re.compile(r"step-(\d{8})$")
# Words that stop a machine's loader before the program itself runs.
LOADER = ("error while loading shared libraries", "cannot allocate memory in static TLS", "failed to map segment")


@dataclass
class Violation:
    rule: str
    text: str


def of_command(world, o):
    found = []
    if o.not_started or any(word in o.err for word in LOADER):
        return found
    if o.hung:
        found.append(Violation("hang", f"still running after {world.program.patience:.0f} s\n{o}"))
    elif o.code not in (codes := allowed_codes(world, o)):
        found.append(Violation(name_of(o.code), f"{name_of(o.code)}, expected one of {sorted(codes)}\n{o}"))
    if o.left_behind:
        found.append(Violation("left behind", f"processes that it started go on without it\n{o}"))
    for word in CRASHES:
        if word in o.out + o.err:
            found.append(Violation("crash", f'it says "{word}"\n{o}'))
            break
    if o.rss_kib > MOST_RSS_KIB:
        found.append(Violation("memory", f"{o.rss_kib >> 10} MiB resident, expected at most {MOST_RSS_KIB >> 10}\n{o}"))
    if o.code == 0 and (bad := NOT_FINITE.search(without_names(o.out))):
        found.append(Violation("not finite", f'exit code 0 and "{bad[0]}"\n{o}'))
    if CONTROL.search(o.err):
        found.append(Violation("control characters", f"{CONTROL.search(o.err)[0]!r} on standard error\n{o}"))
    if o.code in (1, 2, 3, 4) and o.action.get("limits", {}).get("fsize", MOST_RSS_KIB) > 2000:  # it writes to a file
        found += of_message(o)
    if o.second and (o.second.returncode not in (0, 1, 2) or (o.second.returncode and " error " not in o.second.stderr)):
        found.append(Violation("two runs", f"the second ended with {name_of(o.second.returncode)}: {o.second.stderr}\n{o}"))
    return found + of_answers(world, o)


def name_of(code):
    if code is None or code >= 0:
        return f"exit code {code}"
    return f"ended by {signal.Signals(-code).name}"


def without_names(out):
    return re.sub(r"number of nan iterations|nan_steps", "", out)


def allowed_codes(world, o):
    """By what was done to the command and to its world."""
    codes = {0, 1, 2, 3}
    limits = o.action.get("limits", {})
    untouched = not world.taints - {"records"} and not limits
    if untouched and o.verb in ("train", "eval", "sample", "tokenize", "checkpoint", "data", "logits", "export"):
        codes = {0}
    elif world.taints <= {"config", "records"} and o.verb == "train" and not limits:
        codes = {0, 2, 3}  # a value cannot make the world fail, but not suit the tokens of the data
        if "expected less than the vocabulary's size" in o.err:
            codes.add(1)
    stops = ("train", "launch", "lr-find", "sweep", "compare")
    if o.verb in stops and (o.signals or "cpu" in limits or world.taints & {"config", "paths", "flags"}):
        codes.add(85)
    if o.verb == "launch":
        codes |= {4}
    if o.ranks_hit:
        codes |= {1, 4, 85} | {128 + number for number in o.ranks_hit}
    if o.second:
        codes |= {1}  # which of the two has the folder is a matter of luck
    for number in o.signals:
        codes |= {-number, 128 + number}
    if "cpu" in limits:
        codes |= {-signal.SIGXCPU, -signal.SIGKILL, 128 + signal.SIGXCPU, 128 + signal.SIGKILL}
    return codes


def of_message(o):
    """An error is told by lines that a person can read, the last of which says what is wrong."""
    lines = [line for line in o.err.splitlines() if line.strip()]
    if not lines and "problem: " in o.out:  # of data info, which looks at all files
        return []
    if not lines:
        return [Violation("message", f"exit code {o.code} without a word\n{o}")]
    for line in lines:
        if len(line) > LONGEST_LINE:
            return [Violation("message", f"a line of {len(line)} characters\n{line[:300]} ...")]
    said = [line for line in lines if " error " in line or line.startswith("athanor")] or lines
    if max(len(re.findall(r"[A-Za-z]{2,}", line)) for line in said) < 3:
        return [Violation("message", f"nothing is named\n{o}")]
    errors = [line for line in lines if " error " in line]
    if o.verb not in ("launch", "data", "sweep") and len(errors) > len(set(errors)):
        return [Violation("message", f"the same error twice\n{o}")]
    return []


def of_answers(world, o):
    """A verb that reads a checkpoint notices what was changed in it, or gives the same answer as before."""
    changed = "state" in world.taints
    if o.code != 0 or not changed or world.taints - {"state", "records"}:
        return []
    if o.words[:2] == ["checkpoint", "verify"] and o.words[2].split("/")[-1] in world.touched_steps:
        if differs(world, o.words[2]):
            return [Violation("damage unnoticed", f"{o.words[2]} is not as it was written\n{o}")]
    if o.verb == "eval":
        losses = world.program.losses(world.base)
        loss = re.search(r"^loss (\S+)", o.out, re.MULTILINE)
        if loss and loss[1] not in losses:
            return [Violation("damage unnoticed", f"loss {loss[1]}, of the checkpoints it was one of {losses}\n{o}")]
    return []


def differs(world, step):
    """Whether weights or states of a checkpoint are not those that the run had written."""
    written = world.program.base(world.base) / step
    names = [f.name for f in written.glob("*.safetensors")] if written.exists() else []
    here = world.folder / step
    return any(not (here / n).is_file() or digest(here / n) != digest(written / n) for n in names)


def tensors(step):
    """Digests of all tensors of a checkpoint, however many files they are in."""
    found = {}
    for path in sorted(p for p in step.glob("*.safetensors") if p.is_file()):
        data = path.read_bytes()
        size = int.from_bytes(data[:8], "little")
        for name, entry in json.loads(data[8:8 + size]).items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                found[name] = hashlib.sha256(data[8 + size + begin:8 + size + end]).hexdigest()
    return found


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def steps_of(run):
    """Names of committed checkpoints."""
    try:
        return {p.name for p in run.iterdir() if STEP.match(p.name) and p.is_dir() and not p.is_symlink()}
    except OSError:
        return set()


def of_files(world, o, before, after, steps):
    """Nothing outside the run's folder is changed, and what was committed before stays, and is whole."""
    found = []
    if not o.action.get("events") or all(e["do"] in ("signal", "freeze", "second run") for e in o.action["events"]):
        allowed = o.action.get("writes", "")
        for name in sorted(before.keys() | after.keys()):
            if before.get(name) != after.get(name) and not (allowed and name.startswith(allowed)):
                what = "changed" if name in before and name in after else "removed" if name in before else "made"
                found.append(Violation("outside", f"{what} {name}\n{o}"))
                break
    if o.verb not in ("train", "launch"):
        return found
    now = steps_of(world.folder / "run")
    touched = world.touched_steps
    if steps and "run" not in touched and not touched & steps and (not now or max(now) < max(steps)):
        found.append(Violation("lost", f"checkpoint {max(steps)} was there, now {sorted(now) or 'none'}\n{o}"))
    for name in sorted(now - touched)[-1:]:
        looked = world.command({"words": ["checkpoint", "verify", f"run/{name}"]})
        if looked.code != 0:
            found.append(Violation("damaged checkpoint", f"{o}\nand then\n{looked}"))
    return found


def of_results(world):
    """A run that was left alone at last has the bits of one that always was."""
    sums, losses = world.program.reference(world.base)
    found = []
    last = world.folder / "run" / max(steps_of(world.folder / "run"), default="none")
    got = tensors(last)
    for name, want in sums.items():
        if got.get(name) != want:
            found.append(Violation("other bits", f"{last.name}: {name} is {'another' if name in got else 'missing'}, "
                                                 "compared with an undisturbed run"))
            break
    if not world.taints & {"records", "limits", "disk", "state"}:
        got = series(world.folder / "run" / "metrics.jsonl")
        wrong = [s for s in sorted(losses) if got.get(s) != losses[s]]
        if wrong:
            s = wrong[0]
            found.append(Violation("records", f"metrics.jsonl: the loss of step {s} is {got.get(s)}, expected {losses[s]}"))
    return found


def series(path):
    """Losses by step, as configs/LOGS.md says how to read them."""
    steps = {}
    if not path.is_file():  # a pipe would hold us
        return steps
    for line in path.read_text(errors="replace").splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if "supersedes_from" in record:
            steps = {s: loss for s, loss in steps.items() if s < record["supersedes_from"]}
        if record.get("event") == "step":
            steps[record["step"]] = record["loss"]
    return steps
