#include "worker/checkpoint/file_system.h"

namespace trainyard::checkpoint {

Result<std::string> read_text(FileSystem& files, const std::filesystem::path& path,
                              int64_t limit_bytes) {
  TRAINYARD_ASSIGN(const std::unique_ptr<InputFile> file, files.open(path));
  if (file->size() > limit_bytes) {
    return Error{ErrorCode::kInvalidData, path.string() + ": has " + std::to_string(file->size()) +
                                              " bytes, the limit is " +
                                              std::to_string(limit_bytes)};
  }
  std::string text(static_cast<size_t>(file->size()), '\0');
  TRAINYARD_TRY(file->read_at(0, std::as_writable_bytes(std::span(text.data(), text.size()))));
  return text;
}

Status make_directories(FileSystem& files, const std::filesystem::path& path) {
  if (path.empty() || files.list(path)) return {};
  const std::filesystem::path parent = path.parent_path();
  if (parent != path) TRAINYARD_TRY(make_directories(files, parent));
  TRAINYARD_TRY(files.make_directory(path));
  return files.sync_directory(parent.empty() ? "." : parent);
}

Status write_new_file(FileSystem& files, const std::filesystem::path& path, std::string_view text) {
  TRAINYARD_ASSIGN(const std::unique_ptr<OutputFile> file, files.create(path));
  TRAINYARD_TRY(file->write(std::as_bytes(std::span(text.data(), text.size()))));
  return file->sync();
}

Status replace_file(FileSystem& files, const std::filesystem::path& path, std::string_view text,
                    std::string_view temporary_suffix) {
  const std::filesystem::path temporary = path.string() + std::string(temporary_suffix);
  TRAINYARD_TRY(files.remove_file(temporary));  // a crashed predecessor's
  Status status = write_new_file(files, temporary, text);
  if (status) status = files.rename(temporary, path);
  if (!status) {
    (void)files.remove_file(temporary);  // best effort: the space may be what is short
    return status;
  }
  return files.sync_directory(path.parent_path());
}

}  // namespace trainyard::checkpoint
