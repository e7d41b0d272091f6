#include <cmath>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <ostream>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/registry.h"
#include "common/api/decode.h"
#include "common/api/presets.h"
#include "common/io/input.h"
#include "common/text/bounded_json.h"
#include "common/text/json_writer.h"
#include "common/text/utf8.h"

namespace trainyard::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kFooter[] = R"(Examples:
  trainyard convert ds_config.json --steps 10000 > job.yaml
  trainyard convert ds_config.json --ranks 8 --preset gpt2-355m --tokens data/train > job.yaml

Reads train_batch_size, train_micro_batch_size_per_gpu, gradient_accumulation_steps, optimizer,
scheduler, fp16, bf16, zero_optimization and gradient_clipping. Accepts comments (# and //) and
trailing commas. Prints the manifest. Each line "note: ..." on standard error names a setting that
`convert` leaves out or computes, or that the engine treats differently.

Exit codes: 0 converted; 64 a value that a manifest cannot express, or contradictory batch sizes;
65 the file is not JSON; 75 input or output failed.)";

constexpr int64_t kMaxBytes = 1 << 20;
constexpr int kDepthMax = 32;
constexpr double kMaxCount = 1e6;  // of sequences and steps; any three multiply

struct ConvertArguments {
  std::string file;
  std::string preset = "gpt2-124m";
  std::string tokens = "data/train";
  int64_t ranks = 0;
  int64_t steps = 0;
};

/// JSON without comments and trailing commas; every line stays a line.
std::string plain_json(std::string_view text) {
  std::string out;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      out += c;
      if (c == '\\' && i + 1 < text.size())
        out += text[++i];
      else if (c == '"')
        quoted = false;
      continue;
    }
    if (c == '#' || (c == '/' && text.substr(i, 2) == "//")) {
      while (i + 1 < text.size() && text[i + 1] != '\n')
        ++i;
      continue;
    }
    if (c == ']' || c == '}') {
      const size_t last = out.find_last_not_of(" \t\r\n");
      if (last != std::string::npos && out[last] == ',') out[last] = ' ';
    }
    quoted = c == '"';
    out += c;
  }
  return out;
}

/// One run over a configuration: takes keys, and remembers faults and what was left.
class Converter {
 public:
  Converter(const ConvertArguments& arguments, const Json& root)
      : arguments_(arguments), root_(root) {}

  /// The manifest; nothing where there are faults().
  std::string manifest() {
    batch();
    optimizer();
    scheduler();
    precision();
    zero();
    take(root_, "gradient_clipping", "", [&](double clip) { clip_ = clip; });
    for (const char* printing : {"steps_per_print", "wall_clock_breakdown", "dump_state"})
      seen_.insert(printing);
    list_unseen(root_, "");
    if (arguments_.steps > 0) steps_ = arguments_.steps;
    if (steps_ == 0)
      faults_.push_back(
          "--steps: found nothing, wanted a number, because scheduler.params.total_num_steps gives "
          "none");
    return faults_.empty() ? text() : "";
  }

  const std::vector<std::string>& faults() const { return faults_; }
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  static std::string joined(const std::string& path, const std::string& key) {
    return path.empty() ? key : path + "." + key;
  }

  /// Gives a key's number to `use`; a fault for another type, and for "auto", which only the
  /// program that reads such a file could resolve.
  template <class Use>
  bool take(const Json& object, const char* key, const std::string& path, const Use& use) {
    const std::string name = joined(path, key);
    if (!object.is_object() || !object.contains(key)) return false;
    seen_.insert(name);
    const Json& value = object[key];
    if (value == "auto") {
      faults_.push_back(name + ": found \"auto\", wanted the value itself");
    } else if (!value.is_number()) {
      faults_.push_back(name + ": found " + value.dump() + ", wanted a number");
    } else {
      use(value.template get<double>());
      return true;
    }
    return false;
  }

  /// The same of a count.
  bool take_count(const Json& object, const char* key, const std::string& path, int64_t& to,
                  int64_t least = 1) {
    return take(object, key, path, [&](double value) {
      if (value < static_cast<double>(least) || value > kMaxCount || value != std::floor(value))
        faults_.push_back(joined(path, key) + ": found " + text::shortest(value) +
                          ", wanted a whole number from " + std::to_string(least) + " to " +
                          text::shortest(kMaxCount));
      else
        to = static_cast<int64_t>(value);
    });
  }

  std::string word(const Json& object, const char* key, const std::string& path) {
    if (!object.is_object() || !object.contains(key)) return "";
    seen_.insert(joined(path, key));
    return object[key].is_string() ? object[key].get<std::string>() : object[key].dump();
  }

  bool truth(const Json& object, const char* key, const std::string& path) {
    const std::string found = word(object, key, path);
    if (found.empty() || (object[key].is_boolean())) return found == "true";
    faults_.push_back(joined(path, key) + ": found " + object[key].dump() +
                      ", wanted true or false");
    return false;
  }

  const Json& section(const Json& object, const char* key, const std::string& path) {
    static const Json none = Json::object();
    if (!object.is_object() || !object.contains(key)) return none;
    seen_.insert(joined(path, key));
    const Json& found = object[key];
    if (found.is_object()) return found;
    faults_.push_back(joined(path, key) + ": found " + found.dump() + ", wanted an object");
    return none;
  }

  void batch() {
    int64_t all = 0;
    int64_t micro = 0;
    int64_t accumulated = 0;
    take_count(root_, "train_batch_size", "", all);
    take_count(root_, "train_micro_batch_size_per_gpu", "", micro);
    take_count(root_, "gradient_accumulation_steps", "", accumulated);
    if (!faults_.empty()) return;
    ranks_ = arguments_.ranks;
    const auto rest_of = [&](int64_t other) {
      const int64_t known = ranks_ * std::max<int64_t>(1, other);
      return ranks_ > 0 && all > 0 ? std::max<int64_t>(1, all / known) : 1;
    };
    if (micro == 0) micro = rest_of(accumulated);
    if (accumulated == 0) accumulated = rest_of(micro);
    const int64_t one = micro * accumulated;
    if (ranks_ == 0 && all > 0 && all % one == 0) {
      ranks_ = all / one;
      notes_.push_back("number of ranks: computed as " + std::to_string(ranks_) +
                       " from the batch sizes; --ranks sets another number");
    }
    if (ranks_ == 0) ranks_ = 1;
    if (all == 0) all = one * ranks_;
    if (one * ranks_ != all) {
      faults_.push_back("train_batch_size: found " + std::to_string(all) + ", wanted " +
                        std::to_string(one * ranks_) + ": train_micro_batch_size_per_gpu (" +
                        std::to_string(micro) + ") x gradient_accumulation_steps (" +
                        std::to_string(accumulated) + ") x ranks (" + std::to_string(ranks_) + ")");
    }
    sequences_ = all;
    micro_ = micro;
  }

  void optimizer() {
    const Json& found = section(root_, "optimizer", "");
    const std::string type = word(found, "type", "optimizer");
    const Json& params = section(found, "params", "optimizer");
    const std::string path = "optimizer.params";
    if (!type.empty() && type != "AdamW" && type != "Adam")
      faults_.push_back("optimizer.type: found " + type + ", wanted AdamW or Adam");
    const bool coupled = params.contains("adam_w_mode") && !truth(params, "adam_w_mode", path);
    if (!root_.contains("optimizer")) {
      notes_.push_back("optimizer: not in the file; the manifest has the engine's defaults");
    } else {  // theirs, where the file leaves them out
      rate_ = 1e-3;
      epsilon_ = 1e-8;
      decay_ = 0;
      betas_ = "[0.9, 0.999]";
    }
    take(params, "lr", path, [&](double rate) { rate_ = rate; });
    take(params, "eps", path, [&](double epsilon) { epsilon_ = epsilon; });
    take(params, "weight_decay", path, [&](double decay) { decay_ = decay; });
    if (coupled && decay_.value_or(0) != 0)
      faults_.push_back(path +
                        ".adam_w_mode: found false with a weight_decay, wanted true: the engine "
                        "decouples weight decay");
    if (decay_.value_or(0) != 0)
      notes_.push_back(path +
                       ".weight_decay: the engine decays only matrices, not biases and norms");
    if (!params.contains("betas")) return;
    seen_.insert(path + ".betas");
    const Json& betas = params["betas"];
    if (betas.is_array() && betas.size() == 2 && betas[0].is_number() && betas[1].is_number())
      betas_ = "[" + betas[0].dump() + ", " + betas[1].dump() + "]";
    else
      faults_.push_back(path + ".betas: found " + betas.dump() + ", wanted two numbers");
  }

  void scheduler() {
    const Json& found = section(root_, "scheduler", "");
    const std::string type = word(found, "type", "scheduler");
    const Json& params = section(found, "params", "scheduler");
    const std::string path = "scheduler.params";
    if (type.empty()) return;
    if (type == "WarmupLR") {
      schedule_ = "Constant";
    } else if (type == "WarmupDecayLR") {
      schedule_ = "Linear";
      ratio_ = 0;
    } else if (type == "WarmupCosineLR") {
      schedule_ = "Cosine";
      ratio_ = 1e-4;  // its default
    } else {
      faults_.push_back("scheduler.type: found " + type +
                        ", wanted WarmupLR, WarmupDecayLR or WarmupCosineLR");
    }
    warmup_ = 1000;  // theirs, where the file leaves it out
    if (type != "WarmupCosineLR") rate_ = 1e-3;
    take_count(params, "warmup_num_steps", path, warmup_, 0);
    const bool automatic =
        params.contains("total_num_steps") && params["total_num_steps"] == "auto";
    if (automatic && arguments_.steps > 0)
      seen_.insert(path + ".total_num_steps");
    else
      take_count(params, "total_num_steps", path, horizon_);
    take(params, "warmup_max_lr", path, [&](double rate) { rate_ = rate; });
    take(params, "cos_min_ratio", path, [&](double ratio) { ratio_ = ratio; });
    for (const char* from : {"warmup_min_lr", "warmup_min_ratio"}) {
      take(params, from, path, [&](double least) {
        if (least != 0) notes_.push_back(path + "." + from + ": the engine's warm-up starts at 0");
      });
    }
    const std::string shape = word(params, "warmup_type", path);
    const bool log_by_default = shape.empty();
    if (shape == "cosine") {
      schedule_ = "Cosine";
      notes_.push_back(path +
                       ".warmup_type: cosine: the engine's warm-up is linear; after it the rate "
                       "falls as a cosine");
    } else if (log_by_default || (!shape.empty() && shape != "linear")) {
      notes_.push_back(path + ".warmup_type: " + (shape.empty() ? "log (its default)" : shape) +
                       ": the engine's warm-up is linear");
    }
    steps_ = horizon_;
  }

  void precision() {
    const Json& half = section(root_, "fp16", "");
    const Json& brain = section(root_, "bf16", "");
    const bool fp16 = truth(half, "enabled", "fp16");
    const bool bf16 = truth(brain, "enabled", "bf16");
    if (fp16 && bf16)
      faults_.push_back(
          "bf16.enabled: found true together with fp16.enabled, wanted only one of them");
    if (bf16) compute_ = "BF16";
    if (!fp16) {
      for (const auto& [key, value] : half.items())
        seen_.insert("fp16." + key);
      return;
    }
    compute_ = "FP16";
    take(half, "loss_scale", "fp16", [&](double scale) {
      if (scale != 0) loss_scale_ = text::shortest(scale);
    });
    for (const char* tuned : {"loss_scale_window", "initial_scale_power", "hysteresis",
                              "min_loss_scale", "auto_cast"}) {
      if (!half.contains(tuned)) continue;
      seen_.insert(std::string("fp16.") + tuned);
      notes_.push_back(std::string("fp16.") + tuned +
                       ": the engine has no such setting for its dynamic loss scale");
    }
  }

  void offload_to(const Json& zero, const char* key, const char* what) {
    if (!zero.contains(key)) return;
    const std::string name = std::string("zero_optimization.") + key;
    const Json& target = section(zero, key, "zero_optimization");
    const std::string device = word(target, "device", name);
    for (const auto& [inner, value] : target.items())
      seen_.insert(joined(name, inner));
    if (device == "nvme")
      faults_.push_back(name + ".device: found nvme, wanted cpu or none");
    else if (device == "cpu")
      offload_.push_back(what);
  }

  void zero() {
    const Json& found = section(root_, "zero_optimization", "");
    const std::string path = "zero_optimization";
    take(found, "stage", path, [&](double stage) {
      if (stage < 0 || stage > 3 || stage != std::floor(stage))
        faults_.push_back(path + ".stage: found " + text::shortest(stage) + ", wanted 0 to 3");
      else
        stage_ = static_cast<int64_t>(stage);
    });
    offload_to(found, "offload_optimizer", "Optimizer");
    offload_to(found, "offload_param", "Parameters");
    if (truth(found, "cpu_offload", path) && offload_.empty()) offload_.push_back("Optimizer");
    // How it is done, not what: nothing of it changes a result, and here nothing of it is asked.
    for (const auto& [key, value] : found.items()) {
      if (key.starts_with("stage3_") || key.ends_with("_bucket_size") || key == "overlap_comm" ||
          key == "contiguous_gradients" || key == "reduce_scatter" ||
          key == "allgather_partitions" || key == "round_robin_gradients" ||
          key == "sub_group_size" || key == "load_from_fp32_weights") {
        seen_.insert(joined(path, key));
        notes_.push_back(joined(path, key) + ": the engine chooses this itself");
      }
    }
  }

  void list_unseen(const Json& object, const std::string& path) {
    for (const auto& [key, value] : object.items()) {
      const std::string name = joined(path, key);
      if (!seen_.contains(name))
        notes_.push_back(name + ": unknown key, left out");
      else if (value.is_object())
        list_unseen(value, name);
    }
  }

  std::string text() const {
    std::ostringstream out;
    out << "apiVersion: trainyard.dev/v1alpha1\nkind: TrainingJob\nmetadata: {name: converted}\n"
        << "spec:\n  numNodes: 1\n  numProcPerNode: " << ranks_
        << "\n  engine:\n    model: {preset: " << arguments_.preset << "}\n    data: {tokens: ["
        << Json(arguments_.tokens).dump() << "]}\n    batch: {globalSequences: " << sequences_
        << ", microSequences: " << micro_ << "}\n    steps: " << steps_ << '\n';
    std::vector<std::string> optimizer;
    const auto add = [](std::vector<std::string>& to, const char* key,
                        const std::optional<double>& value) {
      if (value) to.push_back(key + (": " + text::shortest(*value)));
    };
    add(optimizer, "learningRate", rate_);
    if (!betas_.empty()) optimizer.push_back("betas: " + betas_);
    add(optimizer, "epsilon", epsilon_);
    add(optimizer, "weightDecay", decay_);
    optimizer.push_back("gradientClip: " + text::shortest(clip_));
    out << "    optimizer: " << braced(optimizer);
    if (!schedule_.empty()) {
      std::vector<std::string> schedule = {"name: " + schedule_};
      if (warmup_ > 0) schedule.push_back("warmupSteps: " + std::to_string(warmup_));
      if (horizon_ > 0) schedule.push_back("horizonSteps: " + std::to_string(horizon_));
      add(schedule, "minRatio", ratio_);
      out << "    learningRateSchedule: " << braced(schedule);
    } else {
      out << "    learningRateSchedule: {name: Constant}\n";
    }
    std::vector<std::string> precision = {"compute: " + compute_};
    if (!loss_scale_.empty()) precision.push_back("lossScale: " + loss_scale_);
    out << "    precision: " << braced(precision);
    std::vector<std::string> parallelism = {"zeroStage: " + std::to_string(stage_)};
    if (!offload_.empty()) {
      std::string list;
      for (const std::string& what : offload_)
        list += (list.empty() ? "" : ", ") + what;
      parallelism.push_back("offload: [" + list + "]");
    }
    out << "    parallelism: " << braced(parallelism);
    return out.str();
  }

  static std::string braced(const std::vector<std::string>& items) {
    std::string text = "{";
    for (const std::string& item : items)
      text += (text.size() == 1 ? "" : ", ") + item;
    return text + "}\n";
  }

  const ConvertArguments& arguments_;
  const Json& root_;
  std::set<std::string> seen_;
  std::vector<std::string> faults_;
  std::vector<std::string> notes_;
  int64_t ranks_ = 1;
  int64_t sequences_ = 1;
  int64_t micro_ = 1;
  int64_t steps_ = 0;
  int64_t warmup_ = 0;
  int64_t horizon_ = 0;
  int64_t stage_ = 0;
  double clip_ = 0;  // theirs clips only where it is told to
  std::optional<double> rate_;
  std::optional<double> epsilon_;
  std::optional<double> decay_;
  std::optional<double> ratio_;
  std::string betas_;
  std::string schedule_;
  std::string compute_ = "FP32";
  std::string loss_scale_;
  std::vector<std::string> offload_;
};

Status run_convert(const ConvertArguments& arguments, CommandContext& context) {
  TRAINYARD_ASSIGN(const std::string text, read_input(arguments.file, kMaxBytes));
  const Result<Json> parsed = parse_bounded_json<Json>(plain_json(text), kDepthMax);
  if (!parsed) return parsed.error().with_context(arguments.file);
  const Json& root = *parsed;
  if (!root.is_object())
    return Error{ErrorCode::kInvalidData, arguments.file + ": found no JSON object, wanted one"};
  Converter converter(arguments, root);
  api::ModelSpec shape;
  if (!api::apply_preset(arguments.preset, shape)) {
    return Error{ErrorCode::kInvalidConfig, "--preset: found '" + arguments.preset +
                                                "', wanted one of " + api::preset_names()};
  }
  bool readable = true;
  for (size_t at = 0; readable && at < arguments.tokens.size();) {
    const int length = text::utf8_length_at(arguments.tokens, at);
    readable = length > 0;
    at += static_cast<size_t>(length);
  }
  if (!readable)
    return Error{ErrorCode::kInvalidConfig,
                 "--tokens: found bytes that are not UTF-8, wanted a path in UTF-8"};
  const std::string manifest = converter.manifest();
  for (const std::string& note : converter.notes())
    context.err << "note: " << printable(note) << '\n';
  if (!converter.faults().empty()) {
    std::string all;
    for (const std::string& fault : converter.faults())
      all += (all.empty() ? "" : "\n") + arguments.file + ": " + fault;
    return Error{ErrorCode::kInvalidConfig, all};
  }
  // What the engine does not do yet is for `validate` to say; what no manifest may say is said
  // here.
  std::string refused;
  for (const api::Fault& fault : api::check_training_job(manifest, {.file = ""}).faults) {
    const std::string said = api::to_string(fault);
    if (said.find("(not in this version)") == std::string::npos)
      refused += (refused.empty() ? "" : "\n") + arguments.file + ": as a manifest: " + said;
  }
  if (!refused.empty()) return Error{ErrorCode::kInvalidConfig, refused};
  context.out << manifest;
  return {};
}

}  // namespace

void register_convert(const Command& app, CommandContext& context) {
  const Command command =
      app.command("convert", "Converts a DeepSpeed configuration to a manifest.");
  auto arguments = std::make_shared<ConvertArguments>();
  command.option("FILE", arguments->file, "DeepSpeed configuration in JSON").required();
  command
      .option("--ranks", arguments->ranks,
              "Number of ranks that FILE was written for (default: computed from its batch sizes)")
      .between(1, 65535);
  command
      .option("--steps", arguments->steps,
              "Number of steps (default: the scheduler's total_num_steps)")
      .between(1, int64_t{1} << 40);
  command.option("--preset", arguments->preset, "Model preset (FILE does not name one)")
      .show_default();
  command.option("--tokens", arguments->tokens, "Token shards (FILE does not name any)")
      .show_default();
  command.footer(kFooter);
  command.runs([arguments, &context] {
    finish(run_convert(*arguments, context), "trainyard convert", context);
  });
}

}  // namespace trainyard::cli
