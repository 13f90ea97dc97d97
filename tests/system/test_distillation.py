"""A student learns from a run's checkpoint or its cached logits: log, exact resume, and teachers that cannot teach."""
import json

from harness import ERROR, ROOT, USAGE, SystemTest


class DistillationTest(SystemTest):
    def test_student_learns_from_a_run_and_resumes_exactly(self):
        config = self.make_config(train_iters=6)
        self.run_program("train", config, "--set", "save=teacher")
        student = ["train", config, "--set", "model.hidden_size=16", "--set", "model.intermediate_size=24", "--set",
                   "distillation.teacher=teacher", "--set", "distillation.temperature=2"]
        self.run_program(*student, "--set", "save=whole")
        for record in self.records("whole"):
            if record["event"] == "step":
                self.assertGreater(record["distill_loss"], 0)
        losses = self.losses("whole")
        self.run_program(*student, "--set", "save=parts", "--set", "train_iters=3", "--set", "schedule.lr_decay_iters=6")
        self.run_program(*student, "--set", "save=parts")
        self.assertEqual(self.losses("parts"), losses)
        weights = [(self.folder / run / "step-00000006" / "model.safetensors").read_bytes() for run in ("whole", "parts")]
        self.assertEqual(*weights)
        out = self.run_program("plan", config, "--set", "distillation.teacher=teacher").out
        self.assertIn("teacher", out)
        plan = json.loads(self.run_program("plan", "--gpu", "h200", "--ranks", "1", "--json", *student[1:]).out)
        step = next(r for r in self.records("whole") if r["event"] == "step")
        self.assertAlmostEqual(plan["flops_per_token"] * step["tokens_per_second"] / (step["tflops"] * 1e12), 1, 6)
        self.run_program("eval", "whole", "--data", "data/text_val_000000.bin")  # needs no teacher
        self.run_program("export", "teacher", "teacher.gguf", "--format", "gguf", "--dtype", "f32")
        of_file = [str(word).replace("teacher=teacher", "teacher=teacher.gguf") for word in student]
        self.run_program(*of_file, "--set", "save=of-file")
        for step, loss in self.losses("of-file").items():
            self.assertAlmostEqual(loss, losses[step], 4)

    def test_incompatible_teachers_are_refused_before_the_first_step(self):
        config = self.make_config(train_iters=6)
        self.run_program("train", config, "--set", "save=teacher")
        for changes, says in [
                (["distillation.teacher=nowhere"], "teacher: nowhere"),
                (["distillation.teacher=teacher", "model.vocab_size=300"], "vocab_size 257"),
                (["distillation.teacher=teacher", "model.max_position_embeddings=512", "seq_length=512"], "max_position_embeddings"),
                (["distillation.teacher=teacher", "distillation.loss=uld"], "distillation.teacher_logits"),
                (["distillation.teacher=teacher", "distillation.temperature=0"], "distillation.temperature")]:
            flags = [word for change in changes for word in ("--set", change)]
            self.refused("train", config, "--set", "save=student", *flags, code=USAGE, says=says)
        self.assertEqual(self.losses("student"), {})

    def cache(self, config, *flags, folder="cache", ranks=1):
        """Makes the logits of the run `teacher`, which is trained first; returns the flags of a student."""
        if not (self.folder / "teacher").exists():
            self.run_program("train", config, "--set", "save=teacher")
        launch = ["launch", "--ranks", str(ranks)] if ranks > 1 else []
        out = self.run_program(*launch, "cache-logits", config, "teacher", "--set", f"distillation.teacher_logits={folder}", *flags)
        return ["train", config, "--set", f"distillation.teacher_logits={folder}"], out

    def test_cached_full_logits_match_the_teacher_and_resume_exactly(self):
        config = self.make_config(train_iters=6, distillation={"temperature": 2}, learning_rate=0.01)
        student, _ = self.cache(config, "--top-k", "257", "--dtype", "f32")
        student += ["--set", "seed=7"]  # other weights and another order of the data
        self.run_program("train", config, "--set", "distillation.teacher=teacher", "--set", "save=live", "--set", "seed=7")
        self.run_program(*student, "--set", "save=whole")
        self.run_program("launch", "--ranks", "2", *student, "--set", "save=ranks", "--set", "tensor_parallel_size=2")
        self.run_program("launch", "--ranks", "2", "train", config, "--set", "distillation.teacher=teacher", "--set", "save=live-ranks",
                         "--set", "seed=7", "--set", "tensor_parallel_size=2")
        self.run_program("launch", "--ranks", "2", *student, "--set", "save=stages", "--set", "pipeline_parallel_size=2",
                         "--set", "micro_batch_size=1")
        for run in ("whole", "ranks", "live-ranks", "stages"):
            for mine, live in zip(self.records(run), self.records("live"), strict=False):
                if live["event"] == "step":
                    for key in ("loss", "distill_loss"):
                        self.assertAlmostEqual(mine[key] / live[key], 1, delta=1e-4, msg=f"{run} {key} {live['step']}")
        self.run_program(*student, "--set", "save=parts", "--set", "train_iters=3", "--set", "schedule.lr_decay_iters=6")
        self.run_program(*student, "--set", "save=parts")
        self.assertEqual(self.losses("parts"), self.losses("whole"))

    def test_top_logits_cache_is_built_once_and_resumes(self):
        config = self.make_config(train_iters=6)
        student, out = self.cache(config, "--top-k", "8", ranks=2)
        self.assertIn("the 8 largest of 257 logits", out.out)
        shard = self.folder / "cache" / "logits-00000.bin"
        before = shard.read_bytes()
        shard.unlink()
        self.refused(*student, code=USAGE, says="not complete")
        self.cache(config, "--top-k", "8", "--batch", "3")
        self.assertEqual(shard.read_bytes(), before)
        self.run_program(*student)
        plan = self.run_program("plan", config, "--set", "distillation.teacher_logits=cache").out
        self.assertIn("teacher logits    8 of 257 at each position", plan)
        alone = self.run_program("plan", config).out
        flops = [next(line for line in text.splitlines() if line.startswith("FLOP per token")) for text in (plan, alone)]
        self.assertEqual(*flops)
        shard.write_bytes(before[:100] + bytes([before[100] ^ 1]) + before[101:])
        self.refused(*student, "--set", "save=other", "--set", "train_iters=100", code=ERROR, says="checksum")

    def test_divergence_covers_only_shared_token_ids(self):
        config = self.make_config(train_iters=6)
        self.cache(config, "--top-k", "4")
        more = ["--set", "model.vocab_size=300", "--set", "distillation.teacher_logits=more"]
        self.refused("cache-logits", config, "teacher", *more, code=USAGE, says="--common-vocab")
        self.run_program("cache-logits", config, "teacher", *more, "--common-vocab", "--top-k", "257")
        self.run_program("train", config, *more, "--set", "save=wider")
        steps = [record for record in self.records("wider") if record["event"] == "step"]
        self.assertGreater(steps[0]["distill_loss"], 0)
        self.refused("train", config, *more, "--set", "save=infinite", "--set", "distillation.loss=reverse_kl", code=USAGE,
                     says="reverse_kl is infinite")

    def test_teacher_with_another_tokenizer_teaches_at_common_token_ends(self):
        text = self.folder / "text.txt"
        text.write_text("The quick brown fox jumps over the lazy dog, and then it sleeps.\n" * 60)
        tokenizer = ROOT / "tests/tokenizer/fixtures/gpt2.json"
        for name, source in (("bpe", tokenizer), ("bytes", "byte")):
            self.run_program("tokenize", text, "--output-prefix", f"{name}/text", "--tokenizer", source,
                             "--block", "512", "--valid-every", "4")
        data = {name: {"train_data": f"{name}/*_train_*.bin", "valid_data": f"{name}/*_val_*.bin"} for name in ("bpe", "bytes")}
        teacher = self.make_config("teacher.json", train_iters=6, save="teacher", model={"vocab_size": 702}, **data["bpe"])
        self.run_program("train", teacher)
        config = self.make_config("student.json", train_iters=6, distillation={"teacher_logits": "cache", "loss": "uld"},
                                  **data["bytes"])
        make = ["cache-logits", config, "teacher", "--top-k", "8"]
        self.refused(*make, code=USAGE, says="--teacher-tokenizer for distillation.loss uld")
        self.refused(*make, "--teacher-tokenizer", "bytes", code=USAGE, says="bytes has 257 tokens")
        made = self.run_program(*make, "--teacher-tokenizer", "teacher")
        self.assertRegex(made.out + made.err, r"[1-9][0-9.]*% of its positions end where the teacher's do")
        self.refused("train", config, "--set", "distillation.loss=kl", code=USAGE, says="set distillation.loss to uld")
        self.run_program("train", config, "--set", "save=student")
        steps = [record for record in self.records("student") if record["event"] == "step"]
        self.assertTrue(all(step["distill_loss"] > 0 for step in steps))

    def test_logits_of_other_data_are_refused_before_the_first_step(self):
        config = self.make_config(train_iters=6)
        student, _ = self.cache(config, "--top-k", "4")
        self.make_data("others", tokens=5000)
        for changes, says in [
                (["distillation.teacher_logits=nowhere"], "nowhere has no manifest.json"),
                (["model.vocab_size=300"], "model.vocab_size 257, the run has 300"),
                (["seq_length=16"], "seq_length 32, the run has 16"),
                (["distillation.temperature=2"], "distillation.temperature 1, the run has 2"),
                (["documents.reset_attention_mask=true", "documents.eod_token_id=0"], "documents"),
                (["train_data=others/*_train_*.bin"], "is of other data")]:
            flags = [word for change in changes for word in ("--set", change)]
            self.refused(*student, "--set", "save=student", *flags, code=USAGE, says=says)
        self.assertFalse((self.folder / "student").exists())
        self.refused("cache-logits", config, "teacher", "--set", "distillation.teacher_logits=cache", "--top-k", "5", code=USAGE,
                     says="top_k: cached 4, needed 5")
