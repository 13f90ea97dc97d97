"""A student learns from a run's checkpoint: log, exact resume, and teachers that cannot teach."""
from harness import USAGE, SystemTest


class DistillationTest(SystemTest):
    def test_a_student_learns_from_a_run_and_resumes_exactly(self):
        config = self.make_config(train_iters=6)
        self.run_program("train", config, "--set", "save=teacher")
        student = ["train", config, "--set", "model.hidden_size=16", "--set", "model.intermediate_size=24", "--set",
                   "teacher=teacher", "--set", "distill_temperature=2"]
        self.run_program(*student, "--set", "save=whole")
        for record in self.records("whole"):
            if record["event"] == "step":
                self.assertGreater(record["distill_loss"], 0)
        losses = self.losses("whole")
        self.run_program(*student, "--set", "save=parts", "--set", "train_iters=3", "--set", "lr_decay_iters=6")
        self.run_program(*student, "--set", "save=parts")
        self.assertEqual(self.losses("parts"), losses)
        weights = [(self.folder / run / "step-00000006" / "model.safetensors").read_bytes() for run in ("whole", "parts")]
        self.assertEqual(*weights)
        out = self.run_program("plan", config, "--set", "teacher=teacher").out
        self.assertIn("teacher", out)
        self.run_program("eval", "whole", "--data", "data/text_val_000000.bin")  # needs no teacher

    def test_teachers_that_cannot_teach_are_refused_before_the_first_step(self):
        config = self.make_config(train_iters=6)
        self.run_program("train", config, "--set", "save=teacher")
        for changes, says in [
                (["teacher=nowhere"], "teacher: nowhere"),
                (["teacher=teacher", "model.vocab_size=300"], "vocab_size 257"),
                (["teacher=teacher", "model.max_position_embeddings=512", "seq_length=512"], "max_position_embeddings"),
                (["teacher=teacher", "tensor_parallel_size=2"], "tensor_parallel_size"),
                (["teacher=teacher", "pipeline_parallel_size=2"], "pipeline_parallel_size"),
                (["teacher=teacher", "distill_temperature=0"], "distill_temperature")]:
            flags = [word for change in changes for word in ("--set", change)]
            self.refused("train", config, "--set", "save=student", *flags, code=USAGE, says=says)
        self.assertEqual(self.losses("student"), {})
