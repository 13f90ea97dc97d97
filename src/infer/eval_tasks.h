// Evaluation tasks with few-shot examples in the prompt, in the formats of DCLM's CORE set [Li et al. 2024, arXiv
// 2406.11794]: multiple choice (several continuations of a context), schema (several contexts of a continuation) and
// language modelling (a continuation that greedy decoding must produce). Items are JSON lines; a JSON file lists the
// tasks (data/README.md).
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "infer/text_scores.h"
#include "tokenizer/tokenizer.h"

namespace athanor {

enum class TaskKind : uint8_t { multiple_choice, schema, language_modeling };

struct TaskItem {
  std::vector<ScoredText> options;  // one entry in language modelling
  int64_t gold = 0;
};

struct EvalTask {
  std::string name;
  TaskKind kind = TaskKind::multiple_choice;
  int64_t few_shot = 0;        // examples in each prompt
  double random_baseline = 0;  // accuracy of guessing, 0 to 1
  std::vector<TaskItem> items;
};

struct TaskLimits {
  int64_t seq_length = 0, vocab_size = 0;
  int64_t max_items = 0;  // max number of items per task (the first ones are used); 0: all
};

// Reads the list and the items of all tasks; paths of items are relative to the list's folder. Throws Error(usage) that
// names file, line and problem.
std::vector<EvalTask> read_eval_tasks(const std::string& path, const Tokenizer& tokenizer, const TaskLimits& limits);

struct TaskResult {
  int64_t items = 0;
  double accuracy = 0;  // option with the best log probability per token is right; language modelling: all tokens are
                        // the most likely ones
  double centered = 0;  // (accuracy - baseline) / (1 - baseline)
};

// All ranks call it together. Language modelling needs Engine::want_logits().
TaskResult evaluate_task(Engine&, const EvalTask&, Communicator* control = nullptr);

}  // namespace athanor
