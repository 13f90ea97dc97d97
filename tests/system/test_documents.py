"""The documents hold to the letter: their commands run as written, tables agree with the program, links lead somewhere.

Commands are taken from README.md, docs/, configs/, data/, tests/golden/ and scripts/bench/: the blocks marked `sh`, command by
command, and what stands in `code` and begins with a program of ours. They run in document order in one folder that looks
like a fresh clone in which the quick start has run; its config and mine.json, once it was checked as documented, are
replaced by small ones with the same keys. NOT_RUN names what does not run here and why; its flags are still looked up.
"""
import json
import os
import re
import shutil
import subprocess
import unittest

from harness import PROGRAM, ROOT, TIMEOUT, SystemTest, with_options

DOCUMENTS = ["README.md", "docs/your-data.md", "docs/training.md", "docs/models.md", "docs/commands.md", "docs/install.md",
             "docs/speed.md", "docs/measurements.md", "docs/distributed.md", "docs/gpu.md", "docs/optimizers.md",
             "docs/precision.md", "docs/security.md", "docs/design.md", "docs/contributing.md", "configs/README.md", "configs/LOGS.md",
             "data/README.md", "tests/golden/README.md", "scripts/bench/cpu/README.md", "scripts/bench/gpu/README.md", "src/README.md"]

NOT_RUN = [
    (r"^scripts/quickstart\.sh", "minutes: it is a group of the tests by itself"),
    (r"^scripts/test\.sh", "minutes: it runs this test"),
    (r"^scripts/(build|setup)\.sh", "builds or needs packages"),
    (r"^sudo debootstrap|^scripts/package\.sh --libc", "minutes, and root: test_scripts does it with ATHANOR_FULL=1"),
    (r"^build/tests/", "test programs, which other groups of the tests run"),
    (r"^scripts/tidy\.py FILE", "lint: it is a group of the tests by itself"),
    (r"^docker ", "needs Docker and a network"),
    (r"^(sbatch|srun) ", "needs Slurm; tests/ranks runs the files of scripts/launch"),
    (r"mpirun", "needs MPI; tests/ranks runs it"),
    (r"HOST:PORT", "needs other machines"),
    (r"\.tiktoken", "needs a downloaded tokenizer"),
    (r"idx3-ubyte", "needs a downloaded data set"),
    (r"^scripts/gpu/|^scripts/bench/gpu/", "needs a GPU or PyTorch"),
    (r"^scripts/bench/|^scripts/make_(recipe_|image_)?references\.py", "minutes, or needs PyTorch"),
    (r"launch .* configs/gpt2-124m\.json", "needs a downloaded data set"),
    (r"gpt-oss-20b", "needs a downloaded model"),
    (r"vit-fashion-mnist", "minutes; test_configs runs it with few images"),
    (r"bench decode configs/gpt2-124m\.json|train configs/moe-small\.json", "minutes"),
    (r"--ranks 4 bench comm", "as long as it likes on few cores; docs/commands.md has one with small tensors"),
    (r"^scripts/corpus\.py", "needs the texts of Debian packages; the quick start runs it"),
    (r"--tasks core\.json", "needs the list and the files of the tasks"),
    (r"^tensorboard ", "needs TensorBoard, and does not end"),
]

# Values for the placeholders in capitals.
PLACEHOLDERS = {"CONFIG.json": "short.json", "CONFIG": "short.json", "OUT.safetensors": "all-rows.safetensors", "RUN": "runs/mine",
                "[RUN...]": "", "STEP-FOLDER": "runs/mine/step-00001000", "SAVE": "runs/joined", "VERB": "plan",
                "CHECKPOINT": "runs/mine", "FILE": "questions.jsonl",
                "corpus/*.parquet": str(ROOT / "tests" / "data" / "fixtures" / "plain.parquet"), "N": "3", "M": "1"}

SMALL = {"threads": 1, "logging": {"peak_tflops": 0.1}, "global_batch_size": 4, "precision": "fp32", "eval_iters": 1}
SMALL_MODEL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 32}
INLINE = re.compile(r"^((build/)?athanor|scripts/\S+|tensorboard|sbatch|srun|mpirun) \S")


def commands_of_block(text):
    """A block of shell commands, one by one: a command ends where bash would begin to run it."""
    command = ""
    for line in text.splitlines():
        command += line + "\n"
        done = subprocess.run(["bash", "-n"], input=command, capture_output=True, text=True)
        if done.returncode == 0 and not line.endswith("\\") and "here-document" not in done.stderr:
            if command.strip() and not command.startswith("#"):
                yield command.strip()
            command = ""
    if command.strip():
        raise AssertionError(f"not a whole command: {command}")


def commands_of(text):
    """(command, whether it stands in a line of text) of a document, in its order."""
    for block, line in re.findall(r"^```(\w*\n.*?)^```|([^\n]*\n)", text, re.M | re.S):
        if block.startswith("sh\n"):
            yield from ((command, False) for command in commands_of_block(block[3:]))
        yield from ((code, True) for code in re.findall(r"`([^`\n]+)`", line) if INLINE.match(code))


def calls_of(command):
    """The words behind every `athanor` of a command; of a launch, also those of what it starts."""
    for call in re.findall(r"(?:^|[\s'/])athanor (?=[a-z]|--version|--help)([^;|&\n]+)", command):
        words = call.partition(" #")[0].split()
        if words[0] == "launch":
            start = next((i for i, word in enumerate(words) if i > 0 and word.isalpha()), len(words))
            yield words[:start]
            words = words[start:]
        if words:
            yield words


class Documents(SystemTest):
    """A folder like a clone after the quick start."""

    def small(self, path, target, **changes):
        config = json.loads(path.read_text())
        config = with_options(config, {**SMALL, **changes})
        config["model"].update(SMALL_MODEL)
        if "intermediate_size" in config["model"]:
            config["model"]["intermediate_size"] = 32
        config.pop("seq_length", None)
        target.write_text(json.dumps(config))

    def make_clone(self):
        here = self.folder
        for name in ("tests", "src"):
            (here / name).symlink_to(ROOT / name)
        for name in ("scripts", "docs"):  # copies, since a script writes docs/commands.md next to itself
            shutil.copytree(ROOT / name, here / name)
        (here / "build").mkdir()
        (here / "build" / "athanor").symlink_to(PROGRAM)
        (here / "configs").mkdir()
        for path in (ROOT / "configs").glob("*.json"):
            if path.name != "quickstart.json":
                (here / "configs" / path.name).symlink_to(path)
        (here / "configs" / "recipes").symlink_to(ROOT / "configs" / "recipes")
        self.small(ROOT / "configs" / "quickstart.json", here / "configs" / "quickstart.json", train_iters=60,
                   schedule={"lr_warmup_iters": 5}, save_interval=20)
        text = (ROOT / "README.md").read_text() * 8
        (here / "book.txt").write_text(text)
        (here / "more.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in text.splitlines()[:200]))
        for part in ("train/flower", "train/tree", "test/tree"):
            shutil.copytree(ROOT / "tests" / "data" / "fixtures" / "pictures", here / "photos" / part)
        for prefix in ("runs/quickstart/data/text", "data/other"):
            self.run_program("tokenize", "--input", "book.txt", "--output-prefix", prefix)
        self.run_program("train", "configs/quickstart.json")
        self.small(ROOT / "configs" / "quickstart.json", here / "short.json", train_iters=3,
                   schedule={"lr_warmup_iters": 0}, save="runs/short")

    def shell(self, command):
        done = subprocess.run(["bash", "-euo", "pipefail", "-c", command], cwd=self.folder, capture_output=True, text=True,
                              errors="replace", stdin=subprocess.DEVNULL, timeout=TIMEOUT,
                              env=dict(os.environ, PATH=f"{self.folder}/build:{os.environ['PATH']}", HOME=str(self.folder)))
        self.assertEqual(done.returncode, 0, f"{command}\n{done.stdout[-1500:]}\n{done.stderr[-1500:]}")

    def help_of(self, words):
        """The help of the deepest verb that the words name."""
        text, verb = self.run_program("--help").out, []
        for word in words:
            if not re.search(rf"^  {re.escape(word)} ", text.partition("Subcommands:")[2], re.M):
                break
            verb.append(word)
            text = self.run_program(*verb, "--help").out
        self.assertTrue(verb or words[0].startswith("-"), f"no such verb: {words}")
        return text

    def look_up(self, command):
        """Every flag must be known to the program or script that gets it."""
        for words in calls_of(re.sub(r"^ATHANOR=\S+ ", "", command)):
            text = self.help_of(words)
            for flag in (w.partition("=")[0] for w in words if re.match(r"--[a-z]", w)):
                self.assertIn(f"{flag} ", text, command)
        if script := re.search(r"(?<!\S)(?:scripts|bench)/\S+", command):
            text = (ROOT / script[0]).read_text()
            beside = (ROOT / script[0]).with_suffix(".py")  # what a shell script of the same name starts
            text += beside.read_text() if beside.is_file() else ""
            text += "".join((ROOT / name).read_text() for name in re.findall(r"(?:scripts|bench)/\S+\.py", text)
                            if (ROOT / name).is_file())
            modules = [beside.with_name(f"{name}.py") for name in re.findall(r"^from (\w+) import", text, re.M)]
            text += "".join(module.read_text() for module in modules if module.is_file())
            if script[0].startswith("scripts/launch/"):
                text += self.help_of(["train"])
            for flag in re.findall(r"(?<![\w-])--[a-z][\w-]*", command.partition("#")[0]):
                self.assertIn(flag, text, command)

    def test_every_documented_command_runs(self):
        self.make_clone()
        unused, ran = {pattern for pattern, _ in NOT_RUN}, 0
        mine = self.folder / "mine.json"
        for document in DOCUMENTS:
            for command, inline in commands_of((ROOT / document).read_text()):
                with self.subTest(document=document, command=command):
                    only_named = inline and not re.search(r"[./]|[A-Z]{2}", command.removeprefix("build/"))
                    if "--gpu" in command:
                        command = command.replace("CONFIG.json", "configs/llama-8b.json")
                    command = " ".join(PLACEHOLDERS.get(w, w) for w in command.split(" "))
                    reasons = {pattern for pattern, _ in NOT_RUN if re.search(pattern, command)}
                    unused -= reasons
                    if reasons or only_named:
                        self.look_up(command)
                        continue
                    if "check-backend" in command:  # the real one: its sizes are what the limits must fit
                        command = command.replace("configs/quickstart.json", str(ROOT / "configs" / "quickstart.json"))
                    if "athanor compare" in command:  # the gap of so small a model depends on the wording of README.md
                        command += " --max-gap 0.1"
                    if "--group-size" not in command:  # rows of so small a model are shorter than the default
                        command = command.replace("--dtype w4a16", "--dtype w4a16 --group-size 16")
                    if re.search(r"athanor (train|eval|bench|sweep|launch)", command) and mine.exists():
                        self.small(mine, mine)
                    self.shell(command)
                    ran += 1
        self.assertEqual(unused, set(), "no document has such a command any more")
        self.assertGreater(ran, 60)

    def test_documented_configurations_are_valid(self):
        for document in DOCUMENTS:
            for block in re.findall(r"^```json\n(.*?)^```", (ROOT / document).read_text(), re.M | re.S):
                (self.folder / "example.json").write_text(block)
                self.run_program("config", "validate", "example.json")

    def test_tables_of_flags_match_the_program(self):
        done = subprocess.run([ROOT / "scripts" / "command_tables.py", "--check", "--program", PROGRAM], capture_output=True,
                              text=True)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_every_document_is_listed_in_this_test(self):
        self.assertEqual({f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")} - set(DOCUMENTS), set())

    def test_links_resolve(self):
        def anchors(path):
            titles = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", path.read_text(), flags=re.M | re.S), re.M)
            return {re.sub(r"[^\w\- ]", "", t.lower()).replace(" ", "-") for t in titles}

        for document in DOCUMENTS:
            path = ROOT / document
            for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
                if "://" in target:
                    continue
                name, _, anchor = target.partition("#")
                other = (path.parent / name).resolve() if name else path
                self.assertTrue(other.exists(), f"{document}: {target}")
                if anchor and other.suffix == ".md":
                    self.assertIn(anchor, anchors(other), f"{document}: {target}")

    def test_troubleshooting_quotes_messages_of_the_program(self):
        source = "".join(p.read_text() for p in (ROOT / "src").rglob("*.cc"))
        source = re.sub(r'"\s*\n?\s*"', "", source)  # literals that are joined
        table = (ROOT / "README.md").read_text().partition("## Troubleshooting")[2].partition("\n## ")[0]
        for cell in re.findall(r"^\| ([^|]*`[^|]*) \|", table, re.M):
            for message in re.findall(r"`([^`]+)`", cell):
                for part in re.split(r"\.\.\.|\bN\b", message):
                    part = re.sub(r' "[^"]*"$', "", part).strip(' ;,"')
                    self.assertIn(part.removeprefix("warning "), source, message)


if __name__ == "__main__":
    unittest.main()
