// Runs with adapters on a tiny model that was trained for some steps and written as a Hugging Face folder.
#pragma once
#include <string>
#include <vector>

#include "convert/floats.h"
#include "convert/hf_folder.h"
#include "convert/model_folder.h"
#include "tests/train/trainer_rig.h"

namespace athanor {

class AdaptedRun : public TrainerTest {
 protected:
  std::string path(const std::string& name) { return dir_.path() + "/" + name; }
  // A folder of weights to start from.
  std::string base() {
    if (base_.empty()) {
      std::vector<std::string> set = model_;
      set.insert(set.end(), {"train_iters=4", "schedule.lr_decay_iters=4"});
      EXPECT_EQ(run(config("base", set)), Exit::done);
      base_ = path("model");
      write_hf_folder(ModelFolder(path("base")), base_, {.dtype = DType::f32});
    }
    return base_;
  }
  // Options of a run with adapters of rank 3 on base(); later ones replace earlier ones.
  std::vector<std::string> adapted(const std::vector<std::string>& kind, const std::vector<std::string>& more) {
    std::vector<std::string> all = {"lora.rank=3", "lora.alpha=6", "schedule.lr_decay_iters=8", "init_from=" + base()};
    all.insert(all.end(), kind.begin(), kind.end());
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  // 8 steps in one run, called whole_NAME, have the files of 3 and 5 in parts_NAME.
  void expect_resume_to_the_bit(const std::string& name, std::vector<std::string> options) {
    const std::string whole = "whole_" + name, parts = "parts_" + name;
    ASSERT_EQ(run(config(whole, options)), Exit::done);
    options.push_back("train_iters=3");
    ASSERT_EQ(run(config(parts, options)), Exit::done);
    options.pop_back();
    ASSERT_EQ(run(config(parts, options)), Exit::done);
    for (const char* file : {"model.safetensors", "optimizer.safetensors", "state.json", "adapter.json"})
      EXPECT_EQ(bytes(whole, 8, file), bytes(parts, 8, file)) << file << " " << name;
  }
  std::vector<float> values(const ModelFolder& model, const std::string& name) {
    std::vector<std::byte> bytes;
    std::vector<float> out;
    const ModelFolder::Weight& w = model.at(name);
    model.read(w, 0, w.shape[0], bytes);
    to_floats(bytes, w.dtype, out);
    return out;
  }
  std::vector<std::string> model_;  // options of another model than that of TrainerTest; set before base()

 private:
  std::string base_;
};

}  // namespace athanor
