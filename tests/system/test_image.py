"""The steps of the Dockerfile, run without Docker: that what they copy is enough to build; all of them, and a training in
the image, with ATHANOR_FULL=1 as root where debootstrap is installed (minutes, and the network of apt)."""
import json
import os
import pathlib
import shutil
import subprocess
import unittest

import image
from harness import DEBOOTSTRAP, ROOT, SystemTest, random_tokens, write_shard


class ImageTest(SystemTest):
    def test_copied_files_configure_and_include_all_sources(self):
        _, stages = image.parse()
        builder = image.Builder(pathlib.Path("/"), self.folder)
        build = stages[0]
        build.folder = self.folder / "root"
        for step in build.steps:
            if step.word in ("WORKDIR", "COPY"):
                builder.step(build, step)
        source = build.folder / build.workdir.lstrip("/")
        scripts = [step.text for step in build.steps if step.word == "RUN" and "scripts/" in step.text]
        self.assertEqual(len(scripts), 2, "setup and build")
        for name in ("setup.sh", "build.sh", "lib.sh"):
            self.assertTrue(os.access(source / "scripts" / name, os.X_OK) or name == "lib.sh", name)
        flags = ["-DATHANOR_CUDA=OFF", "-DATHANOR_TESTS=OFF"]
        done = subprocess.run(["cmake", "-S", source, "-B", self.folder / "b", "-G", "Ninja", *flags], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        rules = (self.folder / "b" / "build.ninja").read_text()
        for made in ("src/main.cc", "command/train.cc"):
            self.assertIn(made, rules)

    def test_missing_file_is_named(self):
        for source, says in (("scripts/gone.sh", "no such file"), ("docs", ".dockerignore does not send docs")):
            with self.assertRaises(SystemExit) as told:
                image.copy_from_context([source], self.folder / "x")
            self.assertIn(says, str(told.exception))

    @unittest.skipUnless(DEBOOTSTRAP, "needs ATHANOR_FULL=1, root and debootstrap")
    def test_image_builds_and_trains(self):
        base = self.folder / "base"
        sources = [pathlib.Path("/etc/apt/sources.list.d"), pathlib.Path("/etc/apt/apt.conf.d")]
        subprocess.run(["debootstrap", "--variant=minbase", "bookworm", base], check=True)
        for folder in sources:  # the mirrors of this machine
            shutil.copytree(folder, base / str(folder).lstrip("/"), dirs_exist_ok=True)
        made = image.Builder(base, self.folder / "out", {"REVISION": "0123456789ab"})
        stage = made.build()
        self.assertEqual(stage.user, "athanor")

        def run(*words):
            done = made.run(stage, [*stage.entrypoint, *words], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            return done.stdout
        self.assertIn("0123456789ab", run("--version"))
        work = stage.folder / "work"
        write_shard(work / "text_train_0.bin", random_tokens(4000))
        config = json.loads((ROOT / "configs" / "quickstart.json").read_text())
        config.update({"save": "run", "train_data": "text_train_0.bin", "valid_data": [], "train_iters": 3, "seq_length": 32,
                       "schedule": {"lr_warmup_iters": 0}, "global_batch_size": 2, "log_interval": 1})
        (work / "mine.json").write_text(json.dumps(config))
        os.chmod(work, 0o777)  # as a mounted folder of the user
        self.assertIn("iteration        3/       3", run("train", "mine.json"))
        self.assertIn("step-00000003", run("checkpoint", "list", "run"))


if __name__ == "__main__":
    unittest.main()
