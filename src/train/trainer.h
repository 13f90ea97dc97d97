// Trainer: the loop of one run. Opens data and run folder, plans, resumes, trains, evaluates, saves, stops cleanly.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/store.h"
#include "comm/rendezvous.h"
#include "config/config.h"
#include "data/loader.h"
#include "device/profiler.h"
#include "metrics/environment.h"
#include "metrics/sink.h"
#include "metrics/trace.h"
#include "tokenizer/tokenizer.h"
#include "train/answer.h"
#include "train/checkpointer.h"
#include "train/evaluate.h"
#include "train/sensor_watch.h"
#include "train/setup.h"
#include "train/signals.h"
#include "train/step_profile.h"

namespace athanor {

struct TrainerOptions {
  ProgramInfo program;              // for environment.json and the manifest
  std::string commit;               // source revision
  std::string backend_description;  // for the log
  Sensors* sensors = nullptr;       // of the device; null: it has none
  Profiler* profiler = nullptr;     // of the device, for config.profile; null: times of ops by events
  std::string why_no_profiler;      // "": the device has none
  bool allow_changed_data = false;  // resume although the data's fingerprint differs
  std::function<void(Activity, int64_t step)> doing = {};  // called when something begins, for ranks that wait
};

class Trainer {
 public:
  Trainer(Config, Backend, TrainerOptions);
  ~Trainer();
  Exit run();

 private:
  struct Resume {
    std::string folder;
    RunState state;
  };
  // What the ranks want next. With one rank everything is asked when it matters; several agree once per step, so that
  // all do the same: the highest of each counts.
  struct Wishes {
    int32_t stop_signal = 0, save = 0, end = 0;
    int32_t writing = 0;  // a part of a checkpoint
    int32_t failed = 0;   // Trainer::failure_
  };
  void doing(Activity) const;
  void require_common_start();          // several ranks: of one program, configuration and data
  void open_run();                      // run folder, lock, sinks, records of the start
  std::optional<Resume> find_resume();  // and checks that the config may continue it
  std::string resume_folder() const;    // "": start anew
  void check_resume(const Resume&);
  void tune(const std::optional<Resume>&);             // products: rank 0's choices, on all ranks
  void share_choices(bool first);
  void choose_products(const std::optional<Resume>&);  // those of the run that goes on, or new ones
  void start(const std::optional<Resume>&);
  Exit run_from_start();
  void tell_error(const std::string& text);
  Exit loop();
  std::string shared(const std::string&);  // rank 0's, on all ranks
  void agree();                            // renews wishes_
  int stop_signal() const;                 // 0: none
  bool asked_to_stop();                    // now; all ranks together
  bool of_any(bool mine);                  // all ranks together
  bool launch_step(Loader&);               // false: discarded because of a stop signal, or for want of data
  void drop_spoiled_step();
  [[noreturn]] void end_with_failure();
  [[noreturn]] void leave_with(const std::optional<Error>& mine);
  void collect_step();  // the oldest of the launched: counts it, and reports it
  bool out_of_time(int64_t micro_left) const;
  bool pause_due(int64_t step) const;  // something comes after this step that needs its result
  PhaseTimes times_of(const StepResult&, PhaseTimes host) const;
  void report(const StepState&, const PhaseTimes&);
  void read_sensors(StepMetrics&);
  void after_step();
  struct EvalSets {
    bool valid = true, choices = true;
  };
  void evaluate(EvalSets);
  void answer_questions();
  void make_up_evaluation(const Resume&);
  enum class Wait { no, durable };
  enum class Health { unknown, diverged };
  // Of the state after the last step, unless it is saved. Wait::no: what fails is told, and tried again later.
  // Wait::durable: it is there when this returns, or an Error. False: it has diverged, and is saved as such.
  bool save(const char* why, Wait, Health = Health::unknown);
  void begin_save(const char* why, bool diverged);
  bool has_diverged();
  void follow_save();  // of the save in the background: what there is to do
  void settle_save();
  void report_save();
  bool eval_due(int64_t step) const;
  bool save_due(int64_t step) const;
  bool wants_to_save() const;  // of this rank, by its clock
  bool time_is_up() const;
  Exit finish(Exit);

  Config config_;
  Backend backend_;
  TrainerOptions options_;
  Dataset train_;
  std::optional<Dataset> valid_;
  PackingOptions packing_;
  bool told_given_up_ = false;
  std::vector<Question> questions_;
  std::vector<TokenizerFile> tokenizer_;  // of the data, as it was at the start
  std::unique_ptr<Engine> engine_;
  std::optional<RunLock> lock_;
  std::unique_ptr<Checkpointer> checkpointer_;
  MetricFanOut metrics_;
  std::unique_ptr<TraceWriter> trace_;
  std::unique_ptr<StepProfile> profile_;
  std::unique_ptr<SensorWatch> sensors_;  // null: no sensors
  int64_t throttle_alarms_ = 0;           // reasons at the last step
  StopSignals signals_;
  Wishes wishes_;  // of several ranks
  RunState state_;
  FlopCount flops_;
  double peak_flops_ = 0;
  PhaseClock clock_;
  std::deque<PhaseTimes> host_times_;  // of the steps launched and not yet collected
  StepTable table_;
  PhaseClock::Clock::time_point started_, last_save_;
  int64_t last_saved_step_ = -1;
  std::optional<PhaseClock::Clock::time_point> retry_save_;  // a save failed: when it is tried again
  bool save_failed_here_ = false;
  std::string save_failure_;                         // why it did
  bool save_put_off_ = false;                        // until a step is good again
  bool failed_ = false;                              // on any rank: failure_
  std::optional<Error> failure_;                     // what ends the run and leaves its state as after the last step
  std::vector<int32_t> last_tokens_, last_targets_;  // of the last micro-batch
  bool running_ = false;                             // the log of this run has begun
  double micro_seconds_ = 0, save_seconds_ = 0, mean_step_seconds_ = 0;  // latest of each, for the stop budget and ETA
  double last_valid_loss_ = kUnknown;
};

}  // namespace athanor
