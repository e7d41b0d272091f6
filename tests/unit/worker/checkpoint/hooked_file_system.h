#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "worker/checkpoint/file_system.h"

namespace trainyard::checkpoint::testing {

/// A file system that asks before every call; an error is what the call returns then, having done
/// nothing. The hook is called by whichever thread makes the call.
class HookedFileSystem : public FileSystem {
 public:
  using Hook = std::function<Status(std::string_view what, const std::filesystem::path& path)>;
  HookedFileSystem(std::shared_ptr<FileSystem> inner, Hook hook)
      : inner_(std::move(inner)), hook_(std::move(hook)) {}

  Result<std::unique_ptr<OutputFile>> create(const std::filesystem::path& path) override {
    TRAINYARD_TRY(hook_("create", path));
    TRAINYARD_ASSIGN(auto file, inner_->create(path));
    return std::unique_ptr<OutputFile>(std::make_unique<Output>(hook_, std::move(file), path));
  }
  Result<std::unique_ptr<InputFile>> open(const std::filesystem::path& path) override {
    TRAINYARD_TRY(hook_("open", path));
    return inner_->open(path);
  }
  Status make_directory(const std::filesystem::path& path) override {
    TRAINYARD_TRY(hook_("mkdir", path));
    return inner_->make_directory(path);
  }
  Status rename(const std::filesystem::path& from, const std::filesystem::path& to) override {
    TRAINYARD_TRY(hook_("rename", from));
    return inner_->rename(from, to);
  }
  Status link(const std::filesystem::path& from, const std::filesystem::path& to) override {
    TRAINYARD_TRY(hook_("link", from));
    return inner_->link(from, to);
  }
  Status symlink(const std::filesystem::path& target, const std::filesystem::path& path) override {
    TRAINYARD_TRY(hook_("symlink", path));
    return inner_->symlink(target, path);
  }
  Result<std::string> read_link(const std::filesystem::path& path) override {
    TRAINYARD_TRY(hook_("readlink", path));
    return inner_->read_link(path);
  }
  Result<bool> is_directory(const std::filesystem::path& path) override {
    TRAINYARD_TRY(hook_("lstat", path));
    return inner_->is_directory(path);
  }
  Status remove_file(const std::filesystem::path& path) override {
    TRAINYARD_TRY(hook_("unlink", path));
    return inner_->remove_file(path);
  }
  Status remove_directory(const std::filesystem::path& path) override {
    TRAINYARD_TRY(hook_("rmdir", path));
    return inner_->remove_directory(path);
  }
  Status sync_directory(const std::filesystem::path& path) override {
    TRAINYARD_TRY(hook_("sync", path));
    return inner_->sync_directory(path);
  }
  Result<std::vector<std::string>> list(const std::filesystem::path& path) override {
    TRAINYARD_TRY(hook_("list", path));
    return inner_->list(path);
  }

 private:
  class Output final : public OutputFile {
   public:
    Output(Hook hook, std::unique_ptr<OutputFile> inner, std::filesystem::path path)
        : hook_(std::move(hook)), inner_(std::move(inner)), path_(std::move(path)) {}
    Status write(std::span<const std::byte> data) override {
      TRAINYARD_TRY(hook_("write", path_));
      return inner_->write(data);
    }
    Status sync() override {
      TRAINYARD_TRY(hook_("sync", path_));
      return inner_->sync();
    }

   private:
    Hook hook_;
    std::unique_ptr<OutputFile> inner_;
    std::filesystem::path path_;
  };

  std::shared_ptr<FileSystem> inner_;
  Hook hook_;
};

}  // namespace trainyard::checkpoint::testing
