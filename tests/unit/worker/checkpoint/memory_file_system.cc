#include "tests/unit/worker/checkpoint/memory_file_system.h"

#include <cstring>
#include <random>
#include <set>
#include <stdexcept>

namespace trainyard::checkpoint::testing {
namespace {

using Node = MemoryFileSystem::Node;

Error error_of(ErrorCode code, std::string_view call, const std::filesystem::path& path) {
  return {code, std::string(call) + " " + path.string() + ": " + std::string(name_of(code))};
}

using Random = std::mt19937_64;

/// After a power loss what is on the medium is all there is.
void settle(Node& node, MemoryFileSystem::Loss loss, Random& random, std::set<Node*>& seen) {
  using Loss = MemoryFileSystem::Loss;
  if (!seen.insert(&node).second) return;
  if (node.kind == Node::Kind::kFile) {
    std::string& content = node.content;
    if (loss == Loss::kEverything) content = node.durable_content;
    if (loss == Loss::kRandom && content != node.durable_content) {
      // Some of what was written behind the synced part, then perhaps zeros (blocks allocated
      // only).
      const size_t synced = node.durable_content.size();
      const size_t size =
          synced + random() % (content.size() - std::min(synced, content.size()) + 1);
      content.resize(size);
      const size_t zeros = size > synced ? random() % (size - synced + 1) : 0;
      std::fill(content.end() - static_cast<ptrdiff_t>(zeros), content.end(), '\0');
    }
    node.durable_content = content;
    return;
  }
  if (loss == Loss::kEverything) node.entries = node.durable_entries;
  if (loss == Loss::kRandom) {
    std::set<std::string> names;
    for (const auto& [name, entry] : node.entries)
      names.insert(name);
    for (const auto& [name, entry] : node.durable_entries)
      names.insert(name);
    for (const std::string& name : names) {
      const auto durable = node.durable_entries.find(name);
      const bool keep_new = random() % 2 == 0;
      if (keep_new) continue;
      if (durable == node.durable_entries.end()) {
        node.entries.erase(name);
      } else {
        node.entries[name] = durable->second;
      }
    }
  }
  node.durable_entries = node.entries;
  for (const auto& [name, entry] : node.entries)
    settle(*entry, loss, random, seen);
}

}  // namespace

class MemoryFileSystem::Output final : public OutputFile {
 public:
  Output(MemoryFileSystem& files, NodePtr node) : files_(files), node_(std::move(node)) {}
  Status write(std::span<const std::byte> data) override {
    const Status allowed = files_.before("write");
    const std::lock_guard lock(files_.mutex_);
    const size_t count = allowed ? data.size() : data.size() / 2;
    node_->content.append(reinterpret_cast<const char*>(data.data()), count);
    return allowed;
  }
  Status sync() override {
    TRAINYARD_TRY(files_.before("fsync"));
    const std::lock_guard lock(files_.mutex_);
    node_->durable_content = node_->content;
    return {};
  }

 private:
  MemoryFileSystem& files_;
  NodePtr node_;
};

class MemoryFileSystem::Input final : public InputFile {
 public:
  Input(MemoryFileSystem& files, NodePtr node)
      : files_(files), node_(std::move(node)), size_(static_cast<int64_t>(node_->content.size())) {}
  int64_t size() const override { return size_; }
  Status read_at(int64_t offset, std::span<std::byte> out) override {
    TRAINYARD_TRY(files_.before("read"));
    const std::lock_guard lock(files_.mutex_);
    if (static_cast<size_t>(offset) + out.size() > node_->content.size()) {
      return Error{ErrorCode::kInvalidData, "the file ends before"};
    }
    if (!out.empty()) std::memcpy(out.data(), node_->content.data() + offset, out.size());
    return {};
  }

 private:
  MemoryFileSystem& files_;
  NodePtr node_;
  int64_t size_;
};

MemoryFileSystem::MemoryFileSystem() : root_(std::make_shared<Node>()) {
  root_->kind = Node::Kind::kDirectory;
}

Status MemoryFileSystem::before(std::string_view what) {
  Hook hook;
  int64_t call = 0;
  {
    const std::lock_guard lock(mutex_);
    hook = hook_;
    call = calls_++;
  }
  return hook ? hook(call, what) : Status();
}

MemoryFileSystem::NodePtr MemoryFileSystem::find(const std::filesystem::path& path) const {
  NodePtr node = root_;
  for (const auto& part : path.relative_path()) {
    const auto found = node->entries.find(part.string());
    if (found == node->entries.end()) return nullptr;
    node = found->second;
  }
  return node;
}

Result<MemoryFileSystem::NodePtr> MemoryFileSystem::parent_of(
    const std::filesystem::path& path) const {
  NodePtr parent = find(path.parent_path());
  if (parent == nullptr || parent->kind != Node::Kind::kDirectory) {
    return error_of(ErrorCode::kNotFound, "find", path);
  }
  return parent;
}

void MemoryFileSystem::lose_power(Loss loss, uint64_t seed) {
  const std::lock_guard lock(mutex_);
  Random random(seed);
  std::set<Node*> seen;
  settle(*root_, loss, random, seen);
}

std::string& MemoryFileSystem::content(const std::filesystem::path& path) {
  const std::lock_guard lock(mutex_);
  const NodePtr node = find(path);
  if (node == nullptr) throw std::runtime_error("no such file: " + path.string());
  return node->content;
}

Result<std::unique_ptr<OutputFile>> MemoryFileSystem::create(const std::filesystem::path& path) {
  TRAINYARD_TRY(before("create"));
  const std::lock_guard lock(mutex_);
  TRAINYARD_ASSIGN(const NodePtr parent, parent_of(path));
  auto node = std::make_shared<Node>();
  if (!parent->entries.emplace(path.filename().string(), node).second) {
    return error_of(ErrorCode::kAlreadyExists, "create", path);
  }
  return std::unique_ptr<OutputFile>(std::make_unique<Output>(*this, std::move(node)));
}

Result<std::unique_ptr<InputFile>> MemoryFileSystem::open(const std::filesystem::path& path) {
  TRAINYARD_TRY(before("open"));
  const std::lock_guard lock(mutex_);
  NodePtr node = find(path);
  if (node == nullptr) return error_of(ErrorCode::kNotFound, "open", path);
  if (node->kind != Node::Kind::kFile) return error_of(ErrorCode::kInvalidData, "open", path);
  return std::unique_ptr<InputFile>(std::make_unique<Input>(*this, std::move(node)));
}

Status MemoryFileSystem::make_directory(const std::filesystem::path& path) {
  TRAINYARD_TRY(before("mkdir"));
  const std::lock_guard lock(mutex_);
  TRAINYARD_ASSIGN(const NodePtr parent, parent_of(path));
  auto node = std::make_shared<Node>();
  node->kind = Node::Kind::kDirectory;
  parent->entries.emplace(path.filename().string(), std::move(node));
  return {};
}

Status MemoryFileSystem::rename(const std::filesystem::path& from,
                                const std::filesystem::path& to) {
  TRAINYARD_TRY(before("rename"));
  const std::lock_guard lock(mutex_);
  const NodePtr node = find(from);
  if (node == nullptr) return error_of(ErrorCode::kNotFound, "rename", from);
  TRAINYARD_ASSIGN(const NodePtr old_parent, parent_of(from));
  TRAINYARD_ASSIGN(const NodePtr new_parent, parent_of(to));
  const NodePtr replaced = find(to);
  if (replaced != nullptr &&
      (replaced->kind == Node::Kind::kDirectory) != (node->kind == Node::Kind::kDirectory)) {
    return error_of(ErrorCode::kIo, "rename", from);
  }
  old_parent->entries.erase(from.filename().string());
  new_parent->entries[to.filename().string()] = node;
  return {};
}

Status MemoryFileSystem::link(const std::filesystem::path& from, const std::filesystem::path& to) {
  TRAINYARD_TRY(before("link"));
  if (!links_) return error_of(ErrorCode::kUnavailable, "link", from);
  const std::lock_guard lock(mutex_);
  const NodePtr node = find(from);
  if (node == nullptr) return error_of(ErrorCode::kNotFound, "link", from);
  TRAINYARD_ASSIGN(const NodePtr parent, parent_of(to));
  if (!parent->entries.emplace(to.filename().string(), node).second) {
    return error_of(ErrorCode::kAlreadyExists, "link", to);
  }
  return {};
}

Status MemoryFileSystem::symlink(const std::filesystem::path& target,
                                 const std::filesystem::path& path) {
  TRAINYARD_TRY(before("symlink"));
  if (!links_) return error_of(ErrorCode::kUnavailable, "symlink", path);
  const std::lock_guard lock(mutex_);
  TRAINYARD_ASSIGN(const NodePtr parent, parent_of(path));
  auto node = std::make_shared<Node>();
  node->kind = Node::Kind::kLink;
  node->content = target.string();
  if (!parent->entries.emplace(path.filename().string(), std::move(node)).second) {
    return error_of(ErrorCode::kAlreadyExists, "symlink", path);
  }
  return {};
}

Result<std::string> MemoryFileSystem::read_link(const std::filesystem::path& path) {
  TRAINYARD_TRY(before("readlink"));
  const std::lock_guard lock(mutex_);
  const NodePtr node = find(path);
  if (node == nullptr || node->kind != Node::Kind::kLink) {
    return error_of(ErrorCode::kNotFound, "readlink", path);
  }
  return node->content;
}

Result<bool> MemoryFileSystem::is_directory(const std::filesystem::path& path) {
  TRAINYARD_TRY(before("lstat"));
  const std::lock_guard lock(mutex_);
  const NodePtr node = find(path);
  return node != nullptr && node->kind == Node::Kind::kDirectory;
}

Status MemoryFileSystem::remove_file(const std::filesystem::path& path) {
  TRAINYARD_TRY(before("unlink"));
  const std::lock_guard lock(mutex_);
  const NodePtr node = find(path);
  if (node == nullptr) return {};
  if (node->kind == Node::Kind::kDirectory) return error_of(ErrorCode::kIo, "unlink", path);
  TRAINYARD_ASSIGN(const NodePtr parent, parent_of(path));
  parent->entries.erase(path.filename().string());
  return {};
}

Status MemoryFileSystem::remove_directory(const std::filesystem::path& path) {
  TRAINYARD_TRY(before("rmdir"));
  const std::lock_guard lock(mutex_);
  const NodePtr node = find(path);
  if (node == nullptr) return {};
  if (!node->entries.empty()) return error_of(ErrorCode::kAlreadyExists, "rmdir", path);
  TRAINYARD_ASSIGN(const NodePtr parent, parent_of(path));
  parent->entries.erase(path.filename().string());
  return {};
}

Status MemoryFileSystem::sync_directory(const std::filesystem::path& path) {
  TRAINYARD_TRY(before("fsync"));
  const std::lock_guard lock(mutex_);
  const NodePtr node = find(path);
  if (node == nullptr) return error_of(ErrorCode::kNotFound, "fsync", path);
  node->durable_entries = node->entries;
  return {};
}

Result<std::vector<std::string>> MemoryFileSystem::list(const std::filesystem::path& path) {
  TRAINYARD_TRY(before("list"));
  const std::lock_guard lock(mutex_);
  const NodePtr node = find(path);
  if (node == nullptr) return error_of(ErrorCode::kNotFound, "list", path);
  if (node->kind != Node::Kind::kDirectory) return error_of(ErrorCode::kIo, "list", path);
  std::vector<std::string> names;
  for (const auto& [name, entry] : node->entries)
    names.push_back(name);
  return names;
}

}  // namespace trainyard::checkpoint::testing
