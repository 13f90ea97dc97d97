// The teacher of a run (key `teacher`): its shape before the plan, its weights after it.
#pragma once
#include "convert/model_folder.h"
#include "train/setup.h"

namespace athanor {

// What the engine needs of the configured teacher, read from its config.json or GGUF file. Throws Error(usage) where it
// is no model, or cannot teach the run's: another vocabulary, or too few positions.
TeacherOptions teacher_options(const Config&);

// The teacher's files, every byte verified by one rank; collective.
VerifiedModel find_teacher(const Config&, const Backend&);

}  // namespace athanor
