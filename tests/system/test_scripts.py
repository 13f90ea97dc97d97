"""The scripts around the program: layering checks that can fail, flags that are refused, steps that show their log."""
import argparse
import contextlib
import io
import re
import shutil
import subprocess
import sys
import unittest

from harness import DEBOOTSTRAP, PROGRAM, ROOT, SystemTest

sys.path.insert(0, str(ROOT / "scripts"))
import run_tests  # noqa: E402

SCRIPTS = ("setup.sh", "build.sh", "test.sh", "quickstart.sh", "format.sh", "package.sh")


def run(*command, **named):
    return subprocess.run([str(c) for c in command], capture_output=True, text=True, stdin=subprocess.DEVNULL, **named)


class CheckLayersTest(SystemTest):
    def setUp(self):
        super().setUp()
        shutil.copy(ROOT / "CMakeLists.txt", self.folder)
        self.write("base/error.h", "// Errors.\n#pragma once\n#include <string>\n")

    def write(self, name, text):
        path = self.folder / "src" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def check(self, *says):
        done = run(ROOT / "scripts" / "check_layers.py", self.folder)
        self.assertEqual(done.returncode, 1 if says else 0, done.stdout + done.stderr)
        for part in says:
            self.assertIn(part, done.stdout)

    def test_repository_follows_the_layers(self):
        done = run(ROOT / "scripts" / "check_layers.py")
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_direct_and_transitive_includes_are_allowed(self):
        self.write("ops/op.cc", '#include "base/error.h"\n#include "tensor/tensor.h"\n#include "device/device.h"\n')
        self.write("main.cc", '#include "command/command.h"\n')
        self.check()

    def test_upward_include_is_found(self):
        self.write("tensor/tensor.h", '// Tensors.\n#pragma once\n\n#include "ops/op.h"\n')
        self.check('src/tensor/tensor.h:4: src/tensor may not include "ops/op.h"')

    def test_sideways_include_is_found(self):
        self.write("data/loader.cc", '#include "config/config.h"\n')
        self.check('src/data/loader.cc:1: src/data may not include "config/config.h"')

    def test_axes_are_named_only_in_mesh_and_placement(self):
        for name in ("comm/mesh.cc", "param/placement.h"):
            self.write(name, "// Says what ranks share.\n#pragma once\nconstexpr Axes kAll{Axis::tp};\n")
        self.check()
        self.write("engine/engine.cc", "// Trains.\nauto& group = mesh[Axis::tp];\n// over dp_shard\n")
        self.check("src/engine/engine.cc:2: names an axis (Axis): ask Placement", "src/engine/engine.cc:3: names an axis (dp_shard)")

    def test_third_party_header_in_a_header_is_found(self):
        self.write("config/json.h", "// JSON.\n#pragma once\n#include <nlohmann/json.hpp>\n")
        self.check("src/config/json.h:3: third-party header <nlohmann/json.hpp>")

    def test_cuda_outside_its_folder_is_found(self):
        self.write("engine/engine.cc", "#include <nccl.h>\n#include <cuda_runtime.h>\n")
        self.check("src/engine/engine.cc:1: <nccl.h>", "src/engine/engine.cc:2: <cuda_runtime.h>")

    def test_long_file_missing_opening_comment_and_missing_guard_are_found(self):
        self.write("nn/long.cc", "// Long.\n" * 600)
        self.write("nn/bare.cc", "int x;\n")
        self.write("nn/guard.h", "// No guard.\n")
        self.check("src/nn/long.cc:600: 600 lines", "src/nn/bare.cc:1: opens neither", "src/nn/guard.h:1:")

    def test_undeclared_folder_is_found(self):
        self.write("magic/spell.cc", "#include <string>\n")
        self.check("src/magic/spell.cc:1: src/magic is declared by no athanor_library line")


class FlagTest(SystemTest):
    def test_every_script_prints_help(self):
        for name in SCRIPTS:
            done = run(ROOT / "scripts" / name, "--help")
            self.assertEqual(done.returncode, 0, name)
            self.assertIn("usage: scripts/" + name, done.stdout)
            self.assertNotIn("#", done.stdout.split("\n")[0])

    def test_unknown_flag_is_an_error(self):
        for name in SCRIPTS:
            done = run(ROOT / "scripts" / name, "--nonsense")
            self.assertEqual(done.returncode, 2, name)
            self.assertIn("--nonsense", done.stderr)

    def test_unknown_group_is_refused_before_anything_is_installed(self):
        shutil.copytree(ROOT / "scripts", self.folder / "scripts", ignore=shutil.ignore_patterns("bench"))
        (self.folder / "scripts" / "setup.sh").write_text("#!/bin/sh\necho installs\n")
        done = run(self.folder / "scripts" / "test.sh", "--only", "layers,nothing")
        self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
        self.assertIn("--only nothing: no such group", done.stderr)

    def test_invalid_cuda_arch_is_refused(self):
        done = run(ROOT / "scripts" / "build.sh", "--cuda-arch", "hopper", "--build-dir", self.folder / "b")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--cuda-arch hopper: expected a list such as 80,90a", done.stderr)
        self.assertFalse((self.folder / "b").exists())

    def test_conflicting_variants_are_refused(self):
        done = run(ROOT / "scripts" / "build.sh", "--asan", "--tsan", "--build-dir", self.folder / "b")
        self.assertEqual(done.returncode, 2)
        self.assertIn("exclude each other", done.stderr)

    def test_jobs_must_be_a_number(self):
        for value in ("many", "0", ""):
            self.assertEqual(run(ROOT / "scripts" / "build.sh", "--jobs", value).returncode, 2, value)


class EndOfProgramTest(SystemTest):
    """A test program whose tests pass, but which fails at its end."""
    LEAK_SEARCH_FAILS = """echo Tracer caught signal 7: addr=0x7f00
        echo ==7==LeakSanitizer has encountered a fatal error.; exit 1"""

    def judge(self, end, all=False):
        program = self.folder / "test_end"
        program.write_text("""#!/bin/sh
            for a; do case $a in --gtest_output=json:*) echo '{"testsuites": [{"name": "End", "testsuite": [
                {"name": "Passes", "status": "RUN", "result": "COMPLETED"}]}]}' > "${a#*:}";; esac; done
            cd "$(dirname "$0")"; runs=$(cat runs 2>/dev/null)1; echo "$runs" > runs
            """ + end)
        program.chmod(0o755)
        (self.folder / "runs").unlink(missing_ok=True)
        runner = run_tests.Runner(argparse.Namespace(build_dir=self.folder, ci=True, all=all))
        run_tests.LOGS, logs = self.folder, run_tests.LOGS
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                return runner.run_googletest(program, "asan", env=run_tests.ASAN_ENVIRONMENT)
        finally:
            run_tests.LOGS = logs
            shutil.rmtree(runner.temporary)

    def test_failed_leak_search_is_a_skip(self):
        result = self.judge("case $ASAN_OPTIONS in *detect_leaks=0) exit 0;; esac\n" + self.LEAK_SEARCH_FAILS)
        self.assertEqual([result.passed, result.failures], [1, []])
        self.assertEqual(result.skips, [["asan: test_end failed at its end: Tracer caught signal 7: addr=0x7f00 ==7==LeakSanitizer "
                                         "has encountered a fatal error.", "its memory was not searched for leaks"]])

    def test_other_error_in_two_runs_is_a_failure(self):
        self.assertEqual(len(self.judge(self.LEAK_SEARCH_FAILS).failures), 1)  # without the search as well
        leaks = "echo ==7==ERROR: LeakSanitizer: detected memory leaks; exit 1"
        self.assertEqual(len(self.judge("case $ASAN_OPTIONS in *detect_leaks=0) exit 0;; esac\n" + leaks).failures), 1)
        self.assertEqual(len(self.judge(leaks, all=True).failures), 1)

    def test_other_error_in_one_run_is_a_skip(self):
        once = "[ $runs != 1 ] || { echo terminate called; exit 1; }"
        self.assertEqual(self.judge(once).skips, [["asan: test_end failed at its end: terminate called",
                                                   "seen once, and not in a second run"]])
        self.assertEqual(len(self.judge(once, all=True).failures), 1)


class PackageTest(SystemTest):
    def test_package_runs_from_any_folder(self):
        done = run(ROOT / "scripts" / "package.sh", "--no-build", "--build-dir", PROGRAM.parent, "--out", self.folder)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        needed = re.search(r"needs glibc (\d+)\.(\d+) or later", done.stdout)
        self.assertLessEqual((int(needed[1]), int(needed[2])), (2, 36), "Debian 12 and what is newer")
        (self.folder / "elsewhere").mkdir()
        archive, = self.folder.glob("*.tar.gz")
        self.assertEqual(run("tar", "-C", self.folder / "elsewhere", "-xzf", archive).returncode, 0)
        folder, = (self.folder / "elsewhere").iterdir()
        plan = run(folder / "athanor", "plan", folder / "configs" / "gpt2-124m.json", "--gpu", "h200", cwd="/", env={})
        self.assertEqual(plan.returncode, 0, plan.stdout + plan.stderr)
        self.assertEqual({p.name for p in (folder / "launch").iterdir()},
                         {p.name for p in (ROOT / "scripts" / "launch").iterdir()})
        self.assertIn("PATH=", (folder / "README").read_text())

    def test_root_of_an_older_distribution_is_recognized(self):
        root = self.folder / "root"
        (root / "usr" / "lib").mkdir(parents=True)
        flags = ["-G", "Ninja", "-DATHANOR_CUDA=OFF", "-DATHANOR_TESTS=OFF", f"-DATHANOR_LIBC={root}"]
        done = run("cmake", "-S", ROOT, "-B", self.folder / "b", *flags)
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(done.stderr, r"ATHANOR_LIBC: \S+ has no\s+usr/lib/\S+/crti.o; it must be the root")

    @unittest.skipUnless(DEBOOTSTRAP, "needs ATHANOR_FULL=1, root and debootstrap")
    def test_package_runs_on_an_older_distribution(self):
        older, build = self.folder / "older", self.folder / "build"
        subprocess.run(["debootstrap", "--variant=minbase", "--include=libc6-dev", "bullseye", older], check=True)
        done = run(ROOT / "scripts" / "package.sh", "--libc", older, "--cuda-arch", "off", "--build-dir", build,
                   "--out", older / "opt")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("needs glibc 2.28 or later", done.stdout)
        config = self.make_config()
        shutil.copytree(self.folder / "data", older / "opt" / "data")
        shutil.copy(config, older / "opt")
        program, = (older / "opt").glob("athanor-*-linux-*/athanor")
        done = run("chroot", older, "sh", "-c", f"cd /opt && /{program.relative_to(older)} train {config.name}")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(run(PROGRAM, "train", config.name, cwd=self.folder).returncode, 0)
        there, here = ([r["loss"] for r in self.records(folder) if r["event"] == "step"]
                       for folder in (older / "opt" / "run", "run"))
        self.assertTrue(there)
        self.assertEqual(there, here)

    def test_packing_without_a_program_is_refused(self):
        done = run(ROOT / "scripts" / "package.sh", "--no-build", "--build-dir", self.folder, "--out", self.folder / "o")
        self.assertEqual(done.returncode, 1)
        self.assertIn("has no program: run scripts/build.sh", done.stderr)
        self.assertFalse((self.folder / "o").exists())


class LibraryTest(SystemTest):
    def bash(self, script):
        return run("bash", "-c", f'source "{ROOT}/scripts/lib.sh"\n{script}',
                   env={"PATH": "/usr/bin:/bin", "ATHANOR_LOGS": str(self.folder / "logs")})

    def test_failed_step_prints_the_end_of_its_log_and_the_status(self):
        done = self.bash('run_step "counting" bash -c "seq 1 100; exit 7"')
        self.assertEqual(done.returncode, 7)
        self.assertIn("counting", done.stdout)
        self.assertIn("exit status 7", done.stdout)
        self.assertRegex(done.stdout, re.compile(r"^ +100$", re.M))
        self.assertNotRegex(done.stdout, re.compile(r"^ +50$", re.M))
        self.assertEqual((self.folder / "logs" / "counting.log").read_text().split(), [str(i) for i in range(1, 101)])

    def test_successful_step_is_quiet(self):
        done = self.bash('run_step "counting" seq 1 100; say after')
        self.assertEqual(done.returncode, 0)
        self.assertNotIn("50", done.stdout)
        self.assertIn("after", done.stdout)

    def test_build_shows_progress(self):
        done = self.bash("""progress "[30/120] Building CXX object CMakeFiles/x.dir/src/base/log.cc.o" 60; echo
                            progress "[120/120] Linking CXX executable athanor" 70; echo
                            progress "[2/120] Building a.o" 1; echo
                            progress "Reading package lists" 5""")
        self.assertEqual(done.stdout.splitlines(), [
            "30 of 120, 25 %, 1 min 00 s, about 3 min 00 s left: log.cc.o",
            "120 of 120, 100 %, 1 min 10 s: Linking CXX executable athanor", "2 of 120, 1 %, 1 s: Building a.o",
            "Reading package lists"])

    def test_relative_paths_begin_where_the_script_is_called(self):
        script = f'cd "{self.folder}"; source "{ROOT}/scripts/lib.sh"\n'
        done = run("bash", "-c", script + "path_of --out some/folder; echo; path_of --out /folder")
        self.assertEqual(done.stdout.splitlines(), [f"{self.folder}/some/folder", "/folder"])
        refused = run("bash", "-c", script + 'out=$(path_of --out ""); echo goes on')
        self.assertEqual((refused.returncode, refused.stdout, refused.stderr), (2, "", "error: --out needs a value\n"))
        done = run("bash", "-c", f'cd "{ROOT}"; source scripts/lib.sh; path_of --out some/folder')
        self.assertEqual(done.stdout, "some/folder", "short in messages")


        done = self.bash("missing_packages dpkg no-such-package-as-this bash")
        self.assertEqual(done.stdout.split(), ["no-such-package-as-this"])


if __name__ == "__main__":
    unittest.main()
