"""Helpers of tests of several ranks: the run they train, starting ranks by hand, and comparing runs."""
import socket

from harness import SystemTest

PEER_LOST = 4


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class RanksTest(SystemTest):
    def setUp(self):
        super().setUp()
        self.config = self.make_config(train_iters=12, save_interval=4, eval_interval=6, eval_iters=3, micro_batch_size=1,
                                       device="cpu")

    def launch(self, ranks, *arguments, **named):
        return self.run_program("launch", "--ranks", ranks, "train", self.config, *arguments, **named)

    def assert_same_losses(self, run, reference):
        got, want = self.losses(run), self.losses(reference)
        self.assertEqual(got.keys(), want.keys())
        for step, loss in want.items():
            self.assertAlmostEqual(got[step], loss, delta=1e-5 * loss, msg=f"step {step} of {run}")
        evals = [{(r["name"], r["step"]): r["loss"] for r in self.records(name) if r["event"] == "eval"}
                 for name in (run, reference)]
        self.assertLessEqual(evals[1].keys(), evals[0].keys())  # a run in parts also evaluates at the end of each
        for which, loss in evals[1].items():
            self.assertAlmostEqual(evals[0][which], loss, delta=1e-5 * loss, msg=f"evaluation {which} of {run}")

    def rank_variables(self, rank, ranks, port):
        """The environment variables that a launcher sets for a rank."""
        return {"RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                "XDG_RUNTIME_DIR": str(self.folder)}

    def start_ranks(self, ranks, *arguments, port=None, **environment):
        """The ranks themselves, as a launcher would start them."""
        port = port or free_port()
        return [self.start("train", self.config, *arguments, env={**environment, **self.rank_variables(r, ranks, port)})
                for r in range(ranks)]
