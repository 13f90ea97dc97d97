#!/usr/bin/env bash
# From a fresh clone to a trained language model, in about ten minutes on two CPU cores: installs, builds, makes a corpus
# of 7 MB of English, trains on it, is stopped on the way and goes on, writes text, and says how good it is.
#
# usage: scripts/quickstart.sh [flags]       (run it again and it goes on where it was, or shows the result)
#   --minutes N      at most about so long for training (default 6); slower machines train fewer steps
#   --fresh          forget an earlier quick start and begin anew
#   --short          a minute's check of all steps, with a model that learns next to nothing; for tests
#   --program PATH   use this program instead of building one
#   --run DIR        where everything goes (default runs/quickstart)
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

minutes=6 fresh='' short='' program='' run=''
while [ $# -gt 0 ]; do
  case $1 in
    --minutes) minutes=$(value_of "$@"); shift ;;
    --fresh) fresh=1 ;;
    --short) short=1 ;;
    --program) program=$(path_of "$@"); shift ;;
    --run) run=$(path_of "$@"); shift ;;
    -h | --help) usage "$0"; exit 0 ;;
    *) bad_flag "$1" ;;
  esac
  shift
done
[[ $minutes =~ ^[0-9]+(\.[0-9]+)?$ ]] || { printf 'error: --minutes %s: expected a number\n' "$minutes" >&2; exit 2; }
run=${run:-runs/quickstart${short:+-short}}
config=configs/quickstart.json
begin=$SECONDS

scripts/setup.sh --quickstart
if [ -z "$program" ]; then
  # Without a GPU there is nothing for CUDA kernels to run on; a build that has them keeps them.
  kernels=(--cuda-arch off)
  if nvidia-smi -L >/dev/null 2>&1 || compgen -G 'build/cuda/*.o' >/dev/null; then kernels=(); fi
  scripts/build.sh --unity "${kernels[@]}"
  program=build/athanor
fi
built=$SECONDS

if [ -n "$fresh" ] && [ -e "$run" ]; then
  [ -e "$run/corpus.txt" ] || fail "--fresh would delete $run, which holds no quick start; delete it yourself or give another"
  rm -rf "$run"
fi
mkdir -p "$run"
corpus=$run/corpus.txt
[ -s "$corpus" ] || run_step "making a corpus from the King James Bible and the fortune cookies" \
  python3 scripts/corpus.py "$corpus"
[ -s "$run/data/text_val_000000.bin" ] || run_step "turning it into tokens, one per byte; every 20th block is held out" \
  "$program" tokenize --input "$corpus" --output-prefix "$run/data/text" --overwrite

overrides=(--set "save=$run" --set "train_data=$run/data/text_train_*.bin" --set "valid_data=$run/data/text_val_*.bin")
if [ -n "$short" ]; then
  overrides+=(--set model.hidden_size=64 --set model.num_attention_heads=4 --set model.intermediate_size=192
    --set model.num_hidden_layers=2 --set eval_iters=2 --set eval_interval=20 --set log_interval=10 --set schedule.lr_warmup_iters=5)
fi

field() { # NAME: of the JSON object on standard input, before which there may be lines of a log
  python3 -c 'import json,sys; text = sys.stdin.read(); print(json.loads(text[text.index("{"):])[sys.argv[1]])' "$1"
}
steps_done() {
  local count
  count=$(grep -c '"event": "step"' "$run/metrics.jsonl" 2>/dev/null || true)
  printf '%s' "${count:-0}"
}

# Median of some steps in this precision, in milliseconds.
step_ms() { # PRECISION
  timeout 120 "$program" bench step $config "${overrides[@]}" --set "precision=$1" --steps 5 --warmup 2 --json |
    field median_ms
}

# A run that has begun keeps its length and precision; a new one is as long as the time allows, and no longer than the
# config says, in the precision whose steps are shorter here.
first_start=1
if [ -s "$run/config.resolved.json" ]; then
  first_start=''
  steps=$(field train_iters <"$run/config.resolved.json")
  overrides+=(--set "precision=$(field precision <"$run/config.resolved.json")")
else
  wanted=$("$program" config validate $config "${overrides[@]}" | field train_iters)
  [ -z "$short" ] || wanted=60
  say "${bold}measuring this machine${reset}"
  too_slow="seven steps took more than two minutes: this machine is too slow for the quick start, or busy"
  bf16=$(step_ms bf16) || fail "$too_slow"
  fp32=$(step_ms fp32) || fail "$too_slow"
  read -r precision measured < <(python3 -c 'import sys; bf16, fp32 = map(float, sys.argv[1:])
print(*("bf16", bf16) if bf16 <= fp32 else ("fp32", fp32))' "$bf16" "$fp32")
  overrides+=(--set "precision=$precision")
  say "  a step takes $(printf '%.0f' "$bf16") ms in bf16 and $(printf '%.0f' "$fp32") ms in fp32: training in $precision"
  # A fiftieth of the time is left for validation and checkpoints.
  steps=$(python3 -c 'import sys; ms, minutes, wanted = map(float, sys.argv[1:]);
print(int(max(20, min(wanted, minutes * 60e3 * 0.98 / ms))))' "$measured" "$minutes" "$wanted")
  say "  $steps steps take about $(python3 -c \
    'import sys; print("%.1f" % (float(sys.argv[1]) * int(sys.argv[2]) / 60e3))' "$measured" "$steps") minutes"
  if [ "$steps" -lt "$wanted" ]; then
    say "  that is less than the $wanted steps of $config: the model will be as good as that many steps make it"
  fi
fi
train=("$program" train $config "${overrides[@]}" --set "train_iters=$steps")

# Trains in the background, so that the script can send a signal; Ctrl-C goes to both, and the program saves and stops.
train_until() { # STEP: 0 for the end
  local pid status=0 stop=$1
  stopped_by_user=''
  trap 'stopped_by_user=1' INT TERM
  "${train[@]}" </dev/null &
  pid=$!
  while kill -0 "$pid" 2>/dev/null; do
    if [ "$stop" -gt 0 ] && [ "$(steps_done)" -ge "$stop" ]; then
      kill -USR1 "$pid" 2>/dev/null || true
      stop=0
    fi
    sleep 0.2 || true
  done
  wait "$pid" || status=$?
  trap - INT TERM
  return "$status"
}
stopped() {
  [ -z "$stopped_by_user" ] || { say "stopped, with a checkpoint; run the same command to resume"; exit 130; }
}

status=0
training=$SECONDS
if [ -n "$first_start" ]; then
  stop_at=$((steps / 3))
  say "${bold}training; at step $stop_at the script stops it, as a batch system would${reset}"
  say "  ${dim}${train[*]}${reset}"
  train_until "$stop_at" || status=$?
  stopped
  [ "$status" = 85 ] || [ "$status" = 0 ] || fail "training ended with exit code $status; the lines above say why"
  [ "$status" = 0 ] || say "${bold}stopped with exit code 85: \"checkpointed, start me again\"; the same command resumes${reset}"
else
  say "${bold}resuming the run in $run${reset}"
  status=85
fi
if [ "$status" = 85 ]; then
  status=0
  train_until 0 || status=$?
  stopped
  [ "$status" = 0 ] || fail "training ended with exit code $status; the lines above say why"
fi
training=$((SECONDS - training))

say "${bold}what it writes${reset}"
prompts=("In the beginning " "And the king said unto " "A man who " "The first rule of ")
rm -f "$run"/sample-*.txt
for i in "${!prompts[@]}"; do
  "$program" sample --checkpoint "$run" --prompt "${prompts[i]}" --max-tokens 400 --temperature 0.7 --seed "$i" \
    >"$run/sample-$i.txt"
  sed 's/^/    /' "$run/sample-$i.txt"
  say ""
done

measure_model() {
  "$program" eval "$run/$(cat "$run/latest")" --data "$run/data/text_val_000000.bin" --json >"$run/valid.json"
}
measure_ngrams() {
  "$program" data info "$run/data/text_train_*.bin" --ngram --ngram-valid "$run/data/text_val_*.bin" >"$run/ngrams.txt"
}
run_step "measuring the model on all of the held-out text" measure_model
run_step "measuring n-gram models of the same text" measure_ngrams
python3 scripts/quickstart_summary.py "$run" ${short:+--short} --program "$program" "${prompts[@]}"
say "whole time: $(seconds $((SECONDS - begin))) (install and build $(seconds $((built - begin))), training $(seconds "$training"))"
