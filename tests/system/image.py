"""Runs the steps of the Dockerfile without a Docker daemon: each stage is a folder that the steps change, by chroot.

usage: image.py BASE OUT    as root; BASE: a folder with a distribution, such as debootstrap makes; it is not changed.
                            OUT: new, gets a folder for each stage; the last is the image

Only what the repository's Dockerfile uses is known: an unknown instruction is an error.
"""
import contextlib
import dataclasses
import fnmatch
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # of a base image


@dataclasses.dataclass
class Step:
    word: str
    text: str


@dataclasses.dataclass
class Stage:
    base: str
    name: str
    steps: list
    folder: pathlib.Path = None
    variables: dict = dataclasses.field(default_factory=dict)  # of ARG and ENV
    environment: dict = dataclasses.field(default_factory=dict)  # of ENV
    workdir: str = "/"
    user: str = "root"
    entrypoint: list = dataclasses.field(default_factory=list)


def substituted(text, variables):
    def value(match):
        name = match[1] or match[2]
        if name not in variables:
            raise SystemExit(f"Dockerfile: ${name} has no value in: {text}")
        return variables[name]
    return re.sub(r"\$(?:\{(\w+)\}|(\w+))", value, text)


def parse(path=ROOT / "Dockerfile"):
    """The arguments before the first stage, and the stages."""
    text = re.sub(r"^\s*#.*\n", "", path.read_text(), flags=re.MULTILINE)
    arguments, stages = {}, []
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        if not line.strip():
            continue
        word, _, rest = line.strip().partition(" ")
        if word == "FROM":
            base, *name = re.split(r"\s+AS\s+", substituted(rest, arguments))
            stages.append(Stage(base, name[0] if name else "", []))
        elif not stages and word == "ARG":
            name, _, value = rest.partition("=")
            arguments[name] = value
        else:
            stages[-1].steps.append(Step(word, rest.strip()))
    return arguments, stages


def context_files(root=ROOT):
    """What .dockerignore sends to the builder: it must be "*" and then exceptions."""
    first, *others = [line for line in (root / ".dockerignore").read_text().splitlines() if line.strip()]
    assert first == "*" and all(line.startswith("!") for line in others), ".dockerignore: expected * and exceptions"
    return [line[1:] for line in others]


def copy_from_context(sources, target, root=ROOT):
    """COPY of files and folders; a folder's content goes into the target."""
    sent = context_files(root)
    for source in sources:
        path = root / source
        top = pathlib.PurePath(source).parts[0]
        if not any(fnmatch.fnmatch(top, pattern) for pattern in sent):
            raise SystemExit(f"Dockerfile: COPY {source}: .dockerignore does not send {top}")
        if not path.exists():
            raise SystemExit(f"Dockerfile: COPY {source}: there is no such file")
        if path.is_dir():
            shutil.copytree(path, target, dirs_exist_ok=True, symlinks=True)
        else:
            to = target / path.name if target.is_dir() or str(target).endswith("/") else target
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, to)


class Builder:
    def __init__(self, base, out, arguments=None):
        self.base, self.out, self.arguments = base, out, arguments or {}
        self.stages = {}

    def place(self, stage, path):
        """A path of the stage, from outside; "scripts/" stays a folder."""
        folder = stage.folder / os.path.join(stage.workdir, path).lstrip("/")
        if path.endswith("/") or path == ".":
            folder.mkdir(parents=True, exist_ok=True)
        return folder

    def copy(self, stage, text):
        words = shlex.split(text)
        origin = words.pop(0).removeprefix("--from=") if words[0].startswith("--from=") else None
        *sources, target = words
        if origin is None:
            return copy_from_context(sources, self.place(stage, target))
        for source in sources:
            from_stage = self.stages[origin].folder / source.lstrip("/")
            shutil.copytree(from_stage, self.place(stage, target), dirs_exist_ok=True, symlinks=True)

    @contextlib.contextmanager
    def mounted(self, folder):
        """The kernel's file systems, as a container has them."""
        points = []
        try:
            for kind, name in (("proc", "proc"), ("sysfs", "sys"), ("tmpfs", "dev/shm")):
                (folder / name).mkdir(parents=True, exist_ok=True)
                subprocess.run(["mount", "-t", kind, kind, folder / name], check=True)
                points.append(folder / name)
            yield
        finally:
            for point in reversed(points):
                subprocess.run(["umount", "-l", point], check=True)

    def run(self, stage, command, environment=None, **keywords):
        """A command in the stage: a text for its shell, or a list of words."""
        words = ["/bin/bash", "-euo", "pipefail", "-c", command] if isinstance(command, str) else command
        user = [] if stage.user == "root" else [f"--userspec={stage.user}:{stage.user}"]
        everything = {"PATH": PATH, "HOME": "/root",
                      **stage.environment, **(environment or {})}
        inside = ["/bin/sh", "-c", 'cd "$0" && exec "$@"', stage.workdir, *words]
        with self.mounted(stage.folder):
            return subprocess.run(["chroot", *user, str(stage.folder), *inside], env=everything, **keywords)

    def step(self, stage, step):
        if step.word == "ARG":
            name, _, value = step.text.partition("=")
            stage.variables[name] = self.arguments.get(name, value)
        elif step.word == "ENV":
            name, _, value = step.text.partition("=")
            known = {"PATH": PATH, **stage.variables, **stage.environment}
            stage.environment[name] = substituted(value, known)
        elif step.word == "WORKDIR":
            stage.workdir = step.text
            (stage.folder / step.text.lstrip("/")).mkdir(parents=True, exist_ok=True)
        elif step.word == "COPY":
            self.copy(stage, step.text)
        elif step.word == "RUN":
            self.run(stage, step.text, stage.variables, check=True)
        elif step.word == "USER":
            stage.user = step.text
        elif step.word == "ENTRYPOINT":
            stage.entrypoint = [word.strip(' "') for word in step.text.strip("[]").split(",")]
        elif step.word == "SHELL":
            assert step.text == '["/bin/bash", "-euo", "pipefail", "-c"]', "Dockerfile: the shell of run()"
        elif step.word not in ("LABEL", "CMD"):
            raise SystemExit(f"Dockerfile: {step.word} is not known to {pathlib.Path(__file__).name}")

    def build(self):
        """All stages; returns the last, which is the image."""
        for number, stage in enumerate(parse()[1]):
            stage.folder = self.out / (stage.name or f"stage-{number}")
            self.out.mkdir(parents=True, exist_ok=True)
            subprocess.run(["cp", "-a", "--reflink=auto", self.base, stage.folder], check=True)
            self.stages[stage.name] = stage
            for step in stage.steps:
                print(f"{step.word} {step.text}", flush=True)
                self.step(stage, step)
        return stage


def main():
    if len(sys.argv) != 3 or sys.argv[1] in ("-h", "--help"):
        print(__doc__.strip())
        return 0 if len(sys.argv) == 2 else 2
    base, out = map(pathlib.Path, sys.argv[1:])
    image = Builder(base, out).build()
    print(f"the image is {image.folder}; its entry point is {image.entrypoint}, its user {image.user}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
