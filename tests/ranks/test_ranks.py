"""Several processes are the same run as one: launched by the program or by hand, stopped, killed, frozen, misfit."""
import json
import os
import resource
import shutil
import signal
import time
from pathlib import Path

from harness import DONE, ERROR, REQUEUE, USAGE
from ranks import PEER_LOST, RanksTest, free_port

CONFIGS = Path(__file__).resolve().parents[2] / "configs"


class SameRunTest(RanksTest):
    def test_every_zero_stage_matches_one_process(self):
        self.run_program("train", self.config, "--set", "save=one")
        for stage in range(4):
            self.launch(2, "--set", f"zero_stage={stage}", "--set", f"save=stage{stage}")
            self.assert_same_losses(f"stage{stage}", "one")

    def test_rank_invariant_sums_are_bit_exact_on_any_ranks(self):
        invariant = ("--set", "deterministic_reduction=rank_invariant", "--set", "logical_shards=4")

        def content(run):
            manifest = json.loads((self.folder / run / "step-00000012" / "manifest.json").read_text())
            return sorted((tensor["name"], tensor["xxh3"]) for tensor in manifest["tensors"])

        self.run_program("train", self.config, *invariant, "--set", "save=one")
        want = self.losses("one"), content("one")
        for ranks, stage in ((2, 1), (4, 0), (4, 3)):
            run = f"ranks{ranks}-{stage}"
            self.launch(ranks, *invariant, "--set", f"zero_stage={stage}", "--set", f"save={run}")
            self.assertEqual((self.losses(run), content(run)), want, run)
        muon = (*invariant, "--set", "optimizer=normuon", "--set")
        self.run_program("train", self.config, *muon, "save=muon")
        self.launch(4, *muon, "save=muon4", "--set", "zero_stage=2", "--set", "data_parallel_replicate_size=2")
        self.assertEqual((self.losses("muon4"), content("muon4")), (self.losses("muon"), content("muon")))
        parts = (*invariant, "--set", "save=parts", "--set", "schedule.lr_decay_iters=12", "--set")
        self.launch(4, *parts, "train_iters=4", "--set", "zero_stage=2")
        self.run_program("train", self.config, *parts, "train_iters=8")
        self.launch(2, *parts, "train_iters=12", "--set", "zero_stage=3")
        self.assertEqual((self.losses("parts"), content("parts")), want, "in parts")
        error = self.launch(3, *invariant, "--set", "save=three", code=USAGE).err
        self.assertIn("logical_shards: 4 do not divide among 3 ranks", error)

    def test_indivisible_batch_is_refused(self):
        error = self.launch(4, "--set", "tensor_parallel_size=2", "--set", "global_batch_size=3", code=USAGE).err
        self.assertIn("global_batch_size: 3 sequences do not divide among 2 groups of 2 ranks", error)
        self.assertIn("take a multiple of 2", error)

    def test_ranks_write_shards_and_consolidate_merges_them(self):
        self.run_program("train", self.config, "--set", "save=one", "--set", "checkpoint.async_save=on")
        self.launch(2, "--set", "save=two", "--set", "checkpoint.async_save=on")
        folder = "two/step-00000012"
        self.assertEqual([p.name for p in sorted((self.folder / folder).glob("*.safetensors*"))],
                         [f"{stem}{rest}" for stem in ("model", "optimizer") for rest in
                          ("-00001-of-00002.safetensors", "-00002-of-00002.safetensors", ".safetensors.index.json")])
        self.run_program("checkpoint", "verify", folder)
        self.assertIn("joined/step-00000012", self.run_program("checkpoint", "consolidate", folder, "joined").out)
        names = {p.name for p in (self.folder / "one/step-00000012").iterdir()}
        self.assertEqual({p.name for p in (self.folder / "joined/step-00000012").iterdir()}, names)
        longer = ("--set", "train_iters=16", "--set", "schedule.lr_decay_iters=12", "--set")
        self.run_program("train", self.config, *longer, "load=joined/step-00000012", "--set", "save=from-joined")
        self.run_program("train", self.config, *longer, f"load={folder}", "--set", "save=from-parts")
        self.assertEqual(self.losses("from-joined"), self.losses("from-parts"))
        damaged = self.folder / folder / "optimizer-00002-of-00002.safetensors"
        damaged.write_bytes(damaged.read_bytes()[:-1])
        error = self.run_program("checkpoint", "consolidate", folder, "again", code=ERROR).err
        self.assertIn("optimizer-00002-of-00002.safetensors", error)

    def check_groups_of_two(self, key):
        """Runs with groups of two ranks continue on other numbers of ranks, are evaluated by one, and need whole groups."""
        two = ("--set", f"{key}=2")
        parts = ("--set", "save=parts", "--set", "schedule.lr_decay_iters=12", "--set")
        self.launch(2, *two, *parts, "train_iters=4")
        self.run_program("train", self.config, *parts, "train_iters=8")
        self.launch(4, *two, *parts, "train_iters=12", "--set", "zero_stage=2")
        self.assert_same_losses("parts", "one")
        found = json.loads(self.run_program("eval", "ranks4-3/step-00000012", "--json").out)
        last = [r["loss"] for r in self.records("one") if r["event"] == "eval"][-1]
        self.assertAlmostEqual(found["loss"], last, delta=1e-2 * last)  # of all windows, not of eval_iters
        error = self.launch(3, *two, "--set", "save=three", code=USAGE).err
        self.assertIn(f"{key}: 3 ranks were started, expected a multiple of 2", error)

    def test_resumes_on_another_number_of_ranks(self):
        self.run_program("train", self.config, "--set", "save=one")
        stop = ("--set", "save=parts", "--set", "schedule.lr_decay_iters=12", "--set")
        self.launch(2, *stop, "train_iters=4", "--set", "zero_stage=3")
        self.run_program("train", self.config, *stop, "train_iters=8")
        self.launch(4, *stop, "train_iters=12", "--set", "zero_stage=2")
        self.assert_same_losses("parts", "one")

    def test_tensor_parallel_ranks_match_one_process(self):
        self.run_program("train", self.config, "--set", "save=one")
        two = ("--set", "tensor_parallel_size=2", "--set")
        for ranks, stage in ((2, 0), (4, 0), (4, 3)):
            run = f"ranks{ranks}-{stage}"
            self.launch(ranks, *two, f"zero_stage={stage}", "--set", f"save={run}")
            self.assert_same_losses(run, "one")
        self.launch(2, *two, "sequence_parallel=true", "--set", "save=rows")
        self.assert_same_losses("rows", "one")
        self.run_program("train", self.config, "--set", "optimizer=normuon", "--set", "save=matrices")
        self.launch(4, *two, "optimizer=normuon", "--set", "save=matrices4")
        self.assert_same_losses("matrices4", "matrices")
        self.check_groups_of_two("tensor_parallel_size")

    def test_context_parallel_ranks_match_one_process(self):
        self.run_program("train", self.config, "--set", "save=one")
        two = ("--set", "context_parallel_size=2", "--set")
        for ranks, stage, method in ((2, 0, "gather"), (4, 3, "ring")):
            run = f"ranks{ranks}-{stage}"
            self.launch(ranks, *two, f"zero_stage={stage}", "--set", f"context_parallel_method={method}", "--set",
                        f"save={run}")
            self.assert_same_losses(run, "one")
        self.check_groups_of_two("context_parallel_size")

    def test_expert_parallel_ranks_match_one_process(self):
        """Over TCP, with a bias that follows the counts of all ranks, and from one number of expert ranks to another."""
        config = self.make_config(
            train_iters=12, save_interval=4, eval_interval=6, eval_iters=3, micro_batch_size=1, device="cpu", zero_stage=0,
            model=dict(model_type="dots1", intermediate_size=48, moe_intermediate_size=24, num_experts=4,
                       num_experts_per_tok=2, n_shared_experts=1, first_k_dense_replace=1, norm_topk_prob=True))
        train = lambda ranks, *more: self.run_program("launch", "--ranks", ranks, "train", config, *more)
        self.run_program("train", config, "--set", "save=one")
        train(4, "--set", "expert_parallel_size=2", "--set", "zero_stage=2", "--set", "save=four")
        self.assert_same_losses("four", "one")
        parts = ("--set", "save=parts", "--set", "schedule.lr_decay_iters=12", "--set")
        train(2, *parts, "train_iters=4", "--set", "expert_parallel_size=2")
        self.run_program("train", config, *parts, "train_iters=8")
        train(4, *parts, "train_iters=12", "--set", "expert_parallel_size=4", "--set", "zero_stage=1")
        self.assert_same_losses("parts", "one")
        error = self.run_program("launch", "--ranks", 3, "train", config, "--set", "expert_parallel_size=2", "--set",
                                 "save=three", code=USAGE).err
        self.assertIn("expert_parallel_size: 3 ranks were started, expected a multiple of 2", error)

    def test_pipeline_stages_match_one_process(self):
        config = json.loads(self.config.read_text())
        config["model"]["num_hidden_layers"] = 4
        self.config.write_text(json.dumps(config))
        self.run_program("train", self.config, "--set", "save=one")
        two = ("--set", "pipeline_parallel_size=2", "--set")
        for ranks, schedule in ((2, "1f1b"), (4, "interleaved"), (2, "zbv")):
            run = f"ranks{ranks}-{schedule}"
            self.launch(ranks, *two, f"pipeline.schedule={schedule}", "--set", f"save={run}")
            self.assert_same_losses(run, "one")
        parts = ("--set", "save=parts", "--set", "schedule.lr_decay_iters=12", "--set")
        self.launch(2, *two[:2], *parts, "train_iters=4")
        self.run_program("train", self.config, *parts, "train_iters=8")
        self.launch(4, "--set", "pipeline_parallel_size=4", *parts, "train_iters=12")
        self.assert_same_losses("parts", "one")
        found = json.loads(self.run_program("eval", "ranks4-interleaved/step-00000012", "--json").out)
        last = [r["loss"] for r in self.records("one") if r["event"] == "eval"][-1]
        self.assertAlmostEqual(found["loss"], last, delta=1e-2 * last)  # of all windows, not of eval_iters
        error = self.launch(3, *two, "save=three", code=USAGE).err
        self.assertIn("pipeline_parallel_size: 3 ranks were started, expected a multiple of 2", error)
        plan = self.run_program("plan", self.config, *two[:2], "--schedule").out
        self.assertRegex(plan, r"pipeline +2 stages, 1f1b: blocks of the parts ([13], [13]|2, 2);")
        self.assertRegex(plan, r"stage 1 +\. +f0")
        plan = self.run_program("plan", self.config, *two, "pipeline.schedule=zb1p", "--schedule").out
        self.assertRegex(plan, r"stage 1 +\. +f0 +b0 +")
        self.assertRegex(plan, r"stage 1 .* w0 ")

    def test_local_update_workers_resume_and_are_counted(self):
        local = ("--set", "local_updates.steps=4", "--set", "data_parallel_replicate_size=2",
                 "--set", "schedule.lr_decay_iters=12")
        self.launch(4, *local, "--set", "save=whole")
        self.launch(4, *local, "--set", "save=parts", "--set", "train_iters=8")
        self.launch(4, *local, "--set", "save=parts")
        self.assertEqual(self.losses("parts"), self.losses("whole"))
        step = "step-00000012/manifest.json"
        whole, parts = (json.loads((self.folder / run / step).read_text())["tensors"] for run in ("whole", "parts"))
        self.assertEqual({t["name"]: t["xxh3"] for t in whole}, {t["name"]: t["xxh3"] for t in parts})
        self.assertTrue(any(t["name"].startswith("worker1.m.") for t in whole))
        self.launch(2, *local, "--set", "save=parts", "--set", "train_iters=16")  # ranks of a worker are free
        error = self.launch(2, "--set", "local_updates.steps=4", "--set", "schedule.lr_decay_iters=12",
                            "--set", "save=parts", "--set",
                            "train_iters=20", code=USAGE).err
        self.assertIn("data_parallel_replicate_size", error)
        self.assertIn("saved with 2 workers", error)
        self.assertIn("2, as data_parallel_replicate_size", self.run_program("plan", self.config, *local).out)

    def test_local_update_workers_resume_with_deltas_in_flight(self):
        options = ("local_updates.steps=4", "local_updates.fragments=2", "local_updates.outer_delay=1",
                   "local_updates.outer_mixing=0.5", "local_updates.outer_delta_dtype=fp4",
                   "data_parallel_replicate_size=2", "zero_stage=0", "save_interval=6")  # a round ends with step 6
        local = [word for option in options for word in ("--set", option)]
        self.launch(2, *local, "--set", "save=whole")
        shutil.copytree(self.folder / "whole", self.folder / "parts")
        shutil.rmtree(self.folder / "parts" / "step-00000012")
        state = json.loads((self.folder / "parts" / "step-00000006" / "state.json").read_text())
        self.assertEqual(state["fragments_in_flight"], [0])
        self.launch(2, *local, "--set", "save=parts")
        self.assertEqual(self.losses("parts"), self.losses("whole"))
        whole, parts = (json.loads((self.folder / run / "step-00000012" / "manifest.json").read_text())["tensors"]
                        for run in ("whole", "parts"))
        self.assertEqual({t["name"]: t["xxh3"] for t in parts}, {t["name"]: t["xxh3"] for t in whole})

    def test_one_bit_workers_resume_before_and_after_the_freeze(self):
        one_bit = ("--set", "optimizer=onebit_adam", "--set", "adam.freeze_step=6", "--set", "data_parallel_replicate_size=2",
                   "--set", "schedule.lr_decay_iters=12")
        self.launch(4, *one_bit, "--set", "zero_stage=2", "--set", "save=whole")
        for end in (4, 8, 12):
            self.launch(4, *one_bit, "--set", "zero_stage=2", "--set", "save=parts", "--set", f"train_iters={end}")
        self.assertEqual(self.losses("parts"), self.losses("whole"))
        self.launch(2, "--set", "save=plain")
        plain, whole = self.losses("plain"), self.losses("whole")
        for step in range(1, 7):
            self.assertAlmostEqual(whole[step], plain[step], delta=1e-5 * plain[step])
        self.assertNotEqual(whole[12], plain[12])
        error = self.launch(4, "--set", "optimizer=onebit_adam", "--set", "adam.freeze_step=6", code=USAGE).err
        self.assertIn("data_parallel_replicate_size: optimizer onebit_adam compresses", error)
        self.assertIn("set it to 4", error)

    def test_documents_masks_questions_and_initial_weights_match_one_process(self):
        """All inputs of a run besides tokens give the same losses on several ranks."""
        lines = [json.dumps({"text": "word " * (i % 9 + 1)}) + "\n" for i in range(60)]
        (self.folder / "a.jsonl").write_text("".join(lines))
        self.run_program("tokenize", "--input", "a.jsonl", "--output-prefix", "words/a", "--valid-every", "5")
        question = {"context": "word word", "choices": [" word", " zzzz"], "label": 0}
        (self.folder / "choices.jsonl").write_text((json.dumps(question) + "\n") * 3)
        self.run_program("train", self.config, "--set", "save=source", "--set", "train_iters=4", "--set",
                         "schedule.lr_warmup_iters=1")
        config = self.make_config(
            train_data="words/a_train_*.bin", valid_data="words/a_val_*.bin", train_iters=12, eval_interval=6,
            eval_iters=3, micro_batch_size=1, device="cpu", multiple_choice_data="choices.jsonl", init_from="source",
            documents={"reset_attention_mask": True, "reset_position_ids": True, "eod_mask_loss": True,
                       "max_per_sequence": 4})
        self.run_program("train", config, "--set", "save=one")
        choices = lambda run: [r for r in self.records(run) if r["event"] == "eval" and r["name"] == "choices"]
        for run, option in (("stage0", "zero_stage=0"), ("stage3", "zero_stage=3"),
                            ("tensor", "tensor_parallel_size=2"), ("context", "context_parallel_size=2")):
            self.run_program("launch", "--ranks", 2, "train", config, "--set", option, "--set", f"save={run}")
            self.assert_same_losses(run, "one")
            self.assertEqual([r["step"] for r in choices(run)], [6, 12])
            for mine, want in zip(choices(run), choices("one")):
                self.assertEqual(mine["accuracy"], want["accuracy"])
                self.assertAlmostEqual(mine["loss"], want["loss"], delta=1e-4 * want["loss"])

    def test_damaged_checkpoint_of_another_run_is_skipped_by_all(self):
        """However many ranks look for the weights that a run starts with, and however it is told of them."""
        self.run_program("train", self.config, "--set", "save=source")
        weights = self.folder / "source" / "step-00000012" / "model.safetensors"
        saved = weights.read_bytes()
        weights.write_bytes(saved[:-1] + bytes([saved[-1] ^ 1]))
        self.run_program("train", self.config, "--init-from", "source", "--set", "save=one")
        for run, how in (("flag", ("--init-from", "source")), ("key", ("--set", "init_from=source"))):
            done = self.launch(2, *how, "--set", f"save={run}")
            self.assertEqual(done.err.count("checkpoint skipped: step-00000012"), 1, done.err)
            self.assert_same_losses(run, "one")

    def test_manually_started_ranks_connect(self):
        for rank, process in enumerate(self.start_ranks(2, "--set", "save=hand")):
            done = self.finish(process)
            self.assertEqual(done.code, DONE, f"rank {rank}: {done}")
        self.assertEqual(self.checkpoints("hand")[-1], "step-00000012")


class StopTest(RanksTest):
    def test_signal_to_one_rank_stops_all_after_one_checkpoint(self):
        processes = self.start_ranks(2, "--set", "train_iters=100000")
        self.assertTrue(self.wait_for_step(processes[0], 3))
        processes[1].send_signal(signal.SIGUSR1)
        for process in processes:
            self.assertEqual(self.finish(process).code, REQUEUE)
        self.assertEqual(int(self.checkpoints()[-1][5:]), max(self.losses()))

    def test_launcher_forwards_signals(self):
        process = self.start("launch", "--ranks", 2, "train", self.config, "--set", "train_iters=100000")
        self.assertTrue(self.wait_for_step(process, 3))
        process.send_signal(signal.SIGTERM)
        self.assertEqual(self.finish(process).code, REQUEUE)


    def test_stop_signal_reaches_ranks_that_have_no_handler_yet(self):
        process = self.start("launch", "--ranks", 2, "train", self.config, "--set", "train_iters=100000")
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        while process.poll() is None and len(children.read_text().split()) < 2:
            time.sleep(0.001)
        process.send_signal(signal.SIGTERM)
        done = self.finish(process)
        self.assertEqual(done.code, REQUEUE, str(done))
        self.assertNotIn("was ended by signal", done.err)

    def test_temporarily_stopped_machine_continues(self):
        """For longer than a rank may be silent: but nobody was there to miss it."""
        processes = self.start_ranks(2, "--set", "train_iters=1000000", "--set", "save_interval=0", "--set",
                                     "eval_interval=0")
        self.assertTrue(self.wait_for_step(processes[0], 3))
        for process in processes:
            process.send_signal(signal.SIGSTOP)
        time.sleep(12)
        last = max(self.losses())
        processes[0].send_signal(signal.SIGCONT)
        time.sleep(0.5)  # in which rank 0 looks for signs of life of rank 1
        processes[1].send_signal(signal.SIGCONT)
        self.assertTrue(self.wait_for_step(processes[0], last + 100))
        processes[0].send_signal(signal.SIGTERM)
        for process in processes:
            self.assertEqual(self.finish(process).code, REQUEUE)


class FailureTest(RanksTest):
    def expect_lost(self, process, victim, *says):
        done = self.finish(process)
        self.assertEqual(done.code, PEER_LOST, str(done))
        for part in (f"rank {victim}", *says):
            self.assertIn(part, done.err)

    def test_killed_rank_ends_the_others(self):
        for victim in (0, 1):
            processes = self.start_ranks(3, "--set", "train_iters=100000", "--set", f"save=killed{victim}",
                                         "--set", "global_batch_size=6")
            self.assertTrue(self.wait_for_step(processes[0], 2, run=f"killed{victim}"))
            processes[victim].kill()
            processes[victim].communicate()
            for rank, process in enumerate(processes):
                if rank != victim:
                    self.expect_lost(process, victim)

    def test_frozen_rank_is_named_within_the_timeout(self):
        def freeze(turn):
            run = f"frozen{turn}"
            processes = self.start_ranks(2, "--set", "train_iters=100000", "--set", "timeouts.heartbeat=3", "--set", f"save={run}")
            self.assertTrue(self.wait_for_step(processes[0], 2, run=run))
            processes[1].send_signal(signal.SIGSTOP)
            begin = time.monotonic()
            self.expect_lost(processes[0], 1, "gave no sign of life for 3 s")
            took = time.monotonic() - begin
            processes[1].kill()
            processes[1].communicate()
            return took

        self.assert_soon(freeze, 7)

    def test_launcher_kills_a_frozen_rank_and_reports_it(self):
        process = self.start("launch", "--ranks", 2, "train", self.config, "--set", "train_iters=100000", "--set",
                             "timeouts.heartbeat=3", "--set", "save_interval=0")
        self.assertTrue(self.wait_for_step(process, 2))
        ranks = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(ranks[1]), signal.SIGSTOP)
        self.expect_lost(process, 1, "rank 1 is stopped (SIGSTOP)")  # else it has 20 s to end by itself

    def test_rank_that_dies_before_connecting_ends_the_launcher(self):
        """The others wait for it: the launcher ends them long before timeouts.connect."""
        process = self.start("launch", "--ranks", 2, "train", self.config, "--set", "train_iters=100000")
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        while process.poll() is None and len(children.read_text().split()) < 2:
            time.sleep(0.001)
        os.kill(int(children.read_text().split()[1]), signal.SIGKILL)  # for which it can have no handler yet
        done = self.finish(process)
        self.assertEqual(done.code, 128 + signal.SIGKILL, str(done))
        self.assertIn("rank 1 was ended by signal 9", done.err)
        self.assertNotIn("has not exited", done.err)

    def test_too_few_file_descriptors_are_named(self):
        limit = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (8, 8))
        done = self.run_program("launch", "--ranks", 2, "train", self.config, code=ERROR, preexec=limit)
        self.assertIn("this process may have 8 in all", done.err)
        self.assertIn("ulimit -n", done.err)
        self.assertNotIn("has not exited", done.err)

    def test_error_of_one_rank_is_reported_by_all(self):
        processes = self.start_ranks(1, "--set", "save=locked", "--set", "train_iters=100000")
        self.assertTrue(self.wait_for_step(processes[0], 1, run="locked"))
        both = self.start_ranks(2, "--set", "save=locked")  # rank 0 does not get the folder's lock
        first, second = self.finish(both[0]), self.finish(both[1])
        self.assertEqual(first.code, ERROR if first.code == ERROR else USAGE, str(first))
        self.assertEqual(second.code, PEER_LOST, str(second))
        self.assertRegex(second.err, r"rank 0 \(\S+\) failed: ")
        processes[0].kill()
        processes[0].communicate()

    def test_missing_ranks_are_named(self):
        for limit in (1, 10, 60):  # within which rank 0 may be late as well on a machine with other work
            process = self.start("train", self.config, "--rank", 0, "--world-size", 2, "--rendezvous",
                                 f"127.0.0.1:{free_port()}", "--set", f"timeouts.connect={limit}",
                                 env={"XDG_RUNTIME_DIR": str(self.folder)})
            done = self.finish(process)
            self.assertEqual(done.code, PEER_LOST, str(done))
            if f"rank 1 of 2 did not join the rendezvous within {limit} s" in done.err:
                return
        self.fail(str(done))

    def test_launcher_reports_the_failed_rank(self):
        self.launch(3, code=USAGE)  # a batch of 4 for 3 ranks
        done = self.launch(2, "--set", "data_parallel_shard_size=3", code=USAGE)
        self.assertIn("do not make the 2 ranks", done.err)
        done = self.launch(2, "--set", "device=cuda", code=USAGE)  # no GPU here, or one for two
        self.assertIn("device", done.err)


class RefusalTest(RanksTest):
    def test_machines_without_a_common_secret_do_not_connect(self):
        self.refused("train", self.config, "--rank", 0, "--world-size", 2, "--rendezvous", "node-1:29500", "--set", "save=",
                     code=USAGE, says=["ATHANOR_SECRET_FILE", "save"])

    def test_incomplete_rank_environment_is_refused(self):
        process = self.start("train", self.config, env={"RANK": "0"})
        done = self.finish(process)
        self.assertEqual(done.code, USAGE)
        self.assertIn("WORLD_SIZE", done.err)

    def test_launch_needs_a_command(self):
        self.run_program("launch", "--ranks", 2, code=USAGE)


class ToolsTest(RanksTest):
    def test_bench_comm_measures_every_collective(self):
        done = self.run_program("launch", "--ranks", 3, "bench", "comm", "--min-bytes", 4096, "--max-bytes", 65536, "--seconds",
                                0.02, "--json")
        report = json.loads(done.out)
        self.assertEqual(report["ranks"], 3)
        seen = {}
        for row in report["rows"]:
            seen.setdefault(row["collective"], []).append(row["bytes"])
            share = {"all_reduce": 4 / 3, "broadcast": 1}.get(row["collective"], 2 / 3)
            self.assertAlmostEqual(row["bus_bytes_per_second"] * row["seconds"] / row["bytes"], share, places=3)
        self.assertEqual(list(seen), ["all_reduce", "all_gather", "reduce_scatter", "broadcast"])
        self.assertTrue(all(len(sizes) == 3 for sizes in seen.values()), seen)
        self.assertIn("several ranks", self.run_program("bench", "comm", code=USAGE).err)

    def test_profile_reports_exposed_communication_of_each_block(self):
        parallel = ("--set", "tensor_parallel_size=2", "--set", "context_parallel_size=2", "--set", "eval_interval=0")
        done = self.launch(4, *parallel, "--profile", "profile.json")
        found = {(r["layer"], r["group"], r["collective"]): r for r in self.records() if r["event"] == "communication"}
        for block in ("transformer.h.0", "transformer.h.1"):
            # Each of four micro-batches all-reduces two GEMMs forward and two backward, and gathers keys and values
            # forward and backward; their gradients are reduce-scattered.
            self.assertEqual(found[block, "tp", "all_reduce"]["calls"], 4 * 4)
            self.assertEqual(found[block, "cp", "all_gather"]["calls"], 2 * 4)
            self.assertEqual(found[block, "cp", "reduce_scatter"]["calls"], 4)
            self.assertIn(block, done.out)
        for record in found.values():
            self.assertGreater(record["exposed_ms"], 0)
            self.assertEqual(record["exposed_ms"], record["ms"], "CPU ranks send and compute in turns")
        steps = [r["step_ms"] for r in self.records() if r["event"] == "step"][1:]
        self.assertLess(sum(r["ms"] for r in found.values()), 1.01 * sum(steps) / len(steps))
        self.launch(2, "--set", "save=without")
        self.assertFalse(any(r["event"] == "communication" for r in self.records("without")))

    def test_plan_lists_every_number_of_gpus(self):
        config = self.make_config("many.json", global_batch_size=2048, micro_batch_size=1, precision="bf16", device="cpu")
        table = {}
        for stage in (0, 1, 3):
            out = self.run_program("plan", config, "--gpu", "h200", "--ranks", 0, "--set", f"zero_stage={stage}").out
            rows = [line.split() for line in out.splitlines()[5:]]
            self.assertEqual([int(r[0]) for r in rows], [1 << k for k in range(11)])
            self.assertEqual([int(r[1]) for r in rows], [max(1, (1 << k) // 8) for k in range(11)])
            table[stage] = out
        self.assertEqual(len(set(table.values())), 3)
        one = self.run_program("plan", config, "--gpu", "h100", "--ranks", 16, "--nodes", 4).out.splitlines()
        self.assertEqual((one[5].split()[:2], one[6]), (["16", "4"], ""))  # the ways to divide these are after it
        for bad, says in ((("--gpu", "v100", "--ranks", 0), "v100"), (("--gpu", "h100", "--ranks", 6, "--nodes", 4), "nodes"),
                          (("--ranks", 0), "--gpu")):
            done = self.run_program("plan", config, *bad, code=USAGE)
            self.assertIn(says, done.err + done.out)
