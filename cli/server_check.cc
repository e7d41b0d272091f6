#include "cli/server_check.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/base/unique_fd.h"
#include "common/io/file.h"
#include "common/text/document.h"

namespace trainyard::cli {
namespace {

using nlohmann::json;

constexpr int64_t kMaxAnswerBytes = 1 << 20;

/// Whether a server has judged the document. kubectl has many words for what keeps one from it:
/// a configuration, a network, credentials, rights, a busy server.
bool is_refusal(const std::string& said) {
  constexpr const char* kJudged[] = {"(Invalid)", "(BadRequest)", "is invalid",
                                     "strict decoding error", "denied the request"};
  const auto has = [&](const char* words) { return said.find(words) != std::string::npos; };
  return std::any_of(std::begin(kJudged), std::end(kJudged), has) ||
         (has("is forbidden: ") && !has(" cannot "));  // a policy, and not the caller's rights
}

/// A file without a name that holds `text`.
Result<UniqueFd> memory_file(const std::string& text) {
  UniqueFd fd(::memfd_create("kubectl", MFD_CLOEXEC));
  if (!fd.valid()) return io_error("memfd_create", errno);
  for (size_t done = 0; done < text.size();) {
    const ssize_t written =
        ::pwrite(fd.get(), text.data() + done, text.size() - done, static_cast<off_t>(done));
    if (written < 0 && errno != EINTR) return io_error("write a memory file", errno);
    done += static_cast<size_t>(std::max<ssize_t>(0, written));
  }
  return fd;
}

/// The text on one line.
std::string one_line(const std::string& text) {
  std::string line;
  for (const char c : text)
    line += c == '\n' ? ' ' : c;
  while (!line.empty() && line.back() == ' ')
    line.pop_back();
  return line;
}

/// kubectl with a document on its standard input.
Result<ServerAnswer> dry_run(const std::string& document, const std::string& ns) {
  TRAINYARD_ASSIGN(const UniqueFd input, memory_file(document));
  TRAINYARD_ASSIGN(const UniqueFd errors, memory_file(""));
  std::vector<std::string> words = {
      "kubectl", "apply", "--dry-run=server",      "--validate=strict",
      "-o",      "json",  "--request-timeout=60s", "-f",
      "-"};
  if (!ns.empty()) words.insert(words.end(), {"--namespace", ns});
  std::vector<char*> arguments;
  for (std::string& word : words)
    arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, input.get(), STDIN_FILENO);
  ::posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, errors.get(), STDERR_FILENO);
  pid_t child = 0;
  const int failed =
      ::posix_spawnp(&child, "kubectl", &actions, nullptr, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (failed == ENOENT) return ServerAnswer{"kubectl is not on PATH", {}};
  if (failed != 0) return io_error("start kubectl", failed);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) return io_error("wait for kubectl", errno);
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return ServerAnswer{};
  TRAINYARD_ASSIGN(const std::string said,
                   read_file("/proc/self/fd/" + std::to_string(errors.get()), kMaxAnswerBytes));
  std::string words_said = one_line(said);
  if (words_said.empty()) words_said = "kubectl exited with status " + std::to_string(status);
  return is_refusal(said) ? ServerAnswer{{}, words_said} : ServerAnswer{words_said, {}};
}

/// A pod as the template says it. An engine's trainer need not name an image.
std::string pod_of(const api::TrainingJob& job) {
  const json whole = json::parse(job.spec.pod_template->json);
  json pod = {{"apiVersion", "v1"}, {"kind", "Pod"}, {"spec", whole["spec"]}};
  pod["metadata"] = whole.value("metadata", json());
  if (!pod["metadata"].is_object()) pod["metadata"] = json::object();
  pod["metadata"]["name"] = job.metadata.name + "-dry-run";
  pod["spec"]["restartPolicy"] = "Never";
  for (json& container : pod["spec"]["containers"]) {
    if (!container.contains("image")) container["image"] = "trainyard";
  }
  return pod.dump();
}

}  // namespace

Result<ServerAnswer> ask_server(const std::string& manifest, const api::TrainingJob& job) {
  if (text::parse(manifest).root.find("kind") == nullptr) {
    return ServerAnswer{"the file holds only an engine, which is not a Kubernetes object", {}};
  }
  const std::string& ns = job.metadata.namespace_name;
  TRAINYARD_ASSIGN(ServerAnswer answer, dry_run(manifest, ns));
  if (!answer.not_asked.empty() || !answer.refusal.empty() || !job.spec.pod_template) return answer;
  return dry_run(pod_of(job), ns);
}

}  // namespace trainyard::cli
