#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "worker/checkpoint/file_system.h"

namespace trainyard::checkpoint::testing {

/// A file system in memory that can fail at any call and lose power at any moment: it knows of each
/// file and directory what has been synced and what has not. Paths are absolute; symbolic links are
/// never followed.
class MemoryFileSystem final : public FileSystem {
 public:
  /// What a power loss does to what was not synced.
  enum class Loss { kNothing, kEverything, kRandom };

  MemoryFileSystem();

  /// Asked before every call with its number (from 0) and a word for it; an error is what the call
  /// returns then, having done nothing (a write: half of its work). The hook may use this file
  /// system.
  using Hook = std::function<Status(int64_t call, std::string_view what)>;
  void set_hook(Hook hook) { hook_ = std::move(hook); }
  /// From now on there are neither hard nor symbolic links, as on exFAT or a mounted bucket.
  void refuse_links() { links_ = false; }
  int64_t calls() const { return calls_; }
  void reset_calls() { calls_ = 0; }

  /// Files opened before are useless afterwards.
  void lose_power(Loss loss, uint64_t seed);

  /// A file's content in place, for damage. The file must be there.
  std::string& content(const std::filesystem::path& path);

  Result<std::unique_ptr<OutputFile>> create(const std::filesystem::path& path) override;
  Result<std::unique_ptr<InputFile>> open(const std::filesystem::path& path) override;
  Status make_directory(const std::filesystem::path& path) override;
  Status rename(const std::filesystem::path& from, const std::filesystem::path& to) override;
  Status link(const std::filesystem::path& from, const std::filesystem::path& to) override;
  Status symlink(const std::filesystem::path& target, const std::filesystem::path& path) override;
  Result<std::string> read_link(const std::filesystem::path& path) override;
  Result<bool> is_directory(const std::filesystem::path& path) override;
  Status remove_file(const std::filesystem::path& path) override;
  Status remove_directory(const std::filesystem::path& path) override;
  Status sync_directory(const std::filesystem::path& path) override;
  Result<std::vector<std::string>> list(const std::filesystem::path& path) override;

  struct Node;
  using NodePtr = std::shared_ptr<Node>;

 private:
  class Output;
  class Input;
  Status before(std::string_view what);
  NodePtr find(const std::filesystem::path& path) const;
  Result<NodePtr> parent_of(const std::filesystem::path& path) const;

  mutable std::mutex mutex_;
  NodePtr root_;
  Hook hook_;
  bool links_ = true;
  int64_t calls_ = 0;
};

struct MemoryFileSystem::Node {
  enum class Kind { kFile, kDirectory, kLink };
  Kind kind = Kind::kFile;
  std::string content;  // of a file; a link's target
  std::string durable_content;
  std::map<std::string, NodePtr> entries;
  std::map<std::string, NodePtr> durable_entries;
};

}  // namespace trainyard::checkpoint::testing
