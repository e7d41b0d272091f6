#include "common/api/decode.h"

#include <filesystem>
#include <utility>

#include "common/api/decoder.h"
#include "common/api/pod_template.h"
#include "common/api/validate.h"
#include "common/io/input.h"

namespace trainyard::api {
namespace {

/// `engine` as a file of its own.
struct EngineFile {
  EngineSpec engine;
};

template <class V, Is<EngineFile> S>
void visit_fields(V& visit, S& file) {
  visit({.name = "engine", .description = "Run of the built-in engine.", .need = Need::kRequired},
        file.engine);
}

/// Reads the text; what is wrong with it becomes faults. True when there is a tree to decode.
bool read_tree(std::string_view text, FaultList& faults, text::Document& document) {
  document = text::parse(text, {.bytes = kMaxManifestBytes});
  for (text::Problem& problem : document.problems) {
    faults.add_at(problem.line, problem.path, std::move(problem.found), std::move(problem.wanted));
  }
  faults.set_line("", document.root.line);
  return document.complete;
}

/// True for a document that holds an engine and nothing of a TrainingJob.
bool is_engine_file(const text::Node& root) {
  return root.find("engine") != nullptr && root.find("spec") == nullptr &&
         root.find("kind") == nullptr && root.find("metadata") == nullptr;
}

/// Holds `spec.template` against Kubernetes' own types.
void check_template(const text::Node& root, FaultList& faults) {
  const text::Node* spec = root.find("spec");
  const text::Node* pod_template = spec == nullptr ? nullptr : spec->find("template");
  if (pod_template == nullptr || pod_template->kind == text::Kind::kNull) return;
  check_pod_template(*pod_template, "spec.template", faults);
}

template <class T>
void decode_root(const text::Node& root, UnknownKeys unknown_keys, FaultList& faults, T& out) {
  Decoder decoder(faults, unknown_keys);
  decoder.decode(Field{.name = {}, .description = {}}, root, "", out);
}

template <class T>
Result<T> result_of(T value, FaultList& faults) {
  if (!faults.empty()) return error_of(faults.take());
  return value;
}

/// The visitor that makes relative paths absolute.
class PathResolver {
 public:
  explicit PathResolver(const std::filesystem::path& base) : base_(base) {}

  template <class M>
  void operator()(const Field& field, M& member) {
    if constexpr (std::same_as<M, std::string>) {
      if (field.content == Content::kPath) resolve(member);
    } else if constexpr (std::same_as<M, std::vector<std::string>>) {
      if (field.content != Content::kPath) return;
      for (std::string& path : member)
        resolve(path);
    } else if constexpr (requires { visit_fields(*this, member); }) {
      visit_fields(*this, member);
    } else if constexpr (requires { visit_fields(*this, *member); }) {
      if (member) visit_fields(*this, *member);
    }
  }

 private:
  void resolve(std::string& path) {
    if (!path.empty()) path = (base_ / path).lexically_normal().string();
  }

  const std::filesystem::path& base_;
};

}  // namespace

std::string job_name_of(const std::filesystem::path& file, const std::string& otherwise) {
  std::string name;
  for (const char raw : file.stem().string()) {
    const char c = raw >= 'A' && raw <= 'Z' ? static_cast<char>(raw - 'A' + 'a') : raw;
    const bool letter = c >= 'a' && c <= 'z';
    const bool rest = (c >= '0' && c <= '9') || c == '-';
    if (letter || (rest && !name.empty())) {
      name += c;
    } else if (!name.empty() && name.back() != '-') {
      name += '-';
    }
    if (name.size() == 40) break;  // leaves room for what is appended to job names
  }
  while (!name.empty() && name.back() == '-')
    name.pop_back();
  return name.empty() ? otherwise : name;
}

CheckedJob check_training_job(std::string_view text, const DecodeOptions& options) {
  CheckedJob checked;
  FaultList faults(options.file);
  text::Document document;
  if (read_tree(text, faults, document)) {
    if (is_engine_file(document.root)) {
      EngineFile file;
      decode_root(document.root, options.unknown_keys, faults, file);
      checked.job.metadata.name = job_name_of(options.file, "engine");
      checked.job.spec.engine = std::move(file.engine);
      if (options.amend) options.amend(checked.job.spec);
      validate_engine(*checked.job.spec.engine, "engine", faults);
    } else if (document.root.kind == text::Kind::kNull) {
      faults.add_at(1, "", "nothing", "a TrainingJob");
    } else {
      decode_root(document.root, options.unknown_keys, faults, checked.job);
      if (options.amend) options.amend(checked.job.spec);
      // Without a mapping there is nothing that rules could be about.
      if (document.root.kind == text::Kind::kMapping) validate_job(checked.job, faults);
      // What an API server holds has been checked by it, which may know more than we do.
      if (options.unknown_keys == UnknownKeys::kRefuse) check_template(document.root, faults);
    }
  }
  checked.faults = faults.take();
  return checked;
}

Result<TrainingJob> decode_training_job(std::string_view text, const DecodeOptions& options) {
  CheckedJob checked = check_training_job(text, options);
  if (!checked.faults.empty()) return error_of(checked.faults);
  return std::move(checked.job);
}

Result<std::string> read_manifest(const std::filesystem::path& path) {
  Result<std::string> text = read_input(path == "-" ? "/dev/stdin" : path, kMaxManifestBytes);
  if (text) return text;
  return Error{ErrorCode::kInvalidConfig,
               path.string() + ": wanted a readable manifest: " + text.error().message};
}

Result<std::filesystem::path> folder_of_manifest(const std::filesystem::path& path) {
  std::error_code error;
  const bool of_a_folder = path != "-" && std::filesystem::is_regular_file(path, error);
  std::filesystem::path folder = of_a_folder ? std::filesystem::absolute(path, error).parent_path()
                                             : std::filesystem::current_path(error);
  if (error) return io_error("absolute path of " + path.string(), error.value());
  return folder;
}

Result<TrainingJob> load_training_job(const std::filesystem::path& path,
                                      std::function<void(TrainingJobSpec& spec)> amend) {
  TRAINYARD_ASSIGN(const std::string text, read_manifest(path));
  TRAINYARD_ASSIGN(TrainingJob job,
                   decode_training_job(text, {.file = path.string(), .amend = std::move(amend)}));
  TRAINYARD_ASSIGN(const std::filesystem::path folder, folder_of_manifest(path));
  if (job.spec.engine) resolve_paths(*job.spec.engine, folder);
  return job;
}

Result<TrainingJobStatus> decode_status(std::string_view text) {
  FaultList faults("status");
  TrainingJobStatus status;
  text::Document document;
  if (read_tree(text, faults, document)) {
    decode_root(document.root, UnknownKeys::kIgnore, faults, status);
  }
  if (!faults.empty()) return Error{ErrorCode::kInvalidData, error_of(faults.take()).message};
  return status;
}

Result<EngineSpec> decode_engine(std::string_view text, const DecodeOptions& options) {
  FaultList faults(options.file);
  EngineSpec engine;
  text::Document document;
  if (read_tree(text, faults, document)) {
    decode_root(document.root, options.unknown_keys, faults, engine);
    if (document.root.kind == text::Kind::kMapping) validate_engine(engine, "", faults);
  }
  return result_of(std::move(engine), faults);
}

Result<CheckpointPolicy> decode_checkpoint_policy(std::string_view text,
                                                  const DecodeOptions& options) {
  FaultList faults(options.file);
  CheckpointPolicy policy;
  text::Document document;
  if (read_tree(text, faults, document)) {
    decode_root(document.root, options.unknown_keys, faults, policy);
    validate_checkpoint_policy(policy, "", faults);
  }
  return result_of(std::move(policy), faults);
}

void resolve_paths(EngineSpec& engine, const std::filesystem::path& base) {
  PathResolver resolver(base);
  visit_fields(resolver, engine);
}

}  // namespace trainyard::api
