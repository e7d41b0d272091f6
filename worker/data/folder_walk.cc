#include "worker/data/folder_walk.h"

#include <algorithm>
#include <deque>
#include <system_error>
#include <utility>

#include "common/text/utf8.h"

namespace trainyard::data {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kEntriesMax = 10'000'000;
constexpr size_t kNamesMax = 1000;
// kubelet's AtomicWriter makes this link in the volumes of ConfigMaps, Secrets and projected files
// (kubernetes pkg/volume/util/atomic_writer.go); what it leads to begins with two dots as well.
constexpr char kVolumeLink[] = "..data";

Error walk_error(const fs::path& path, const std::error_code& code) {
  return {ErrorCode::kIo, "list " + path.string() + ": " + code.message()};
}

const char* kind_of(fs::file_type type) {
  switch (type) {
    case fs::file_type::fifo:
      return "a pipe";
    case fs::file_type::socket:
      return "a socket";
    case fs::file_type::block:
    case fs::file_type::character:
      return "a device";
    default:
      return "neither a file nor a folder";
  }
}

/// Whether `above` is `path` or one of the folders around it; both canonical.
bool is_around(const fs::path& above, const fs::path& path) {
  return std::mismatch(above.begin(), above.end(), path.begin(), path.end()).first == above.end();
}

/// What programs keep for themselves: .git, .ipynb_checkpoints, .Trash.
bool is_hidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

class Walk {
 public:
  Walk(fs::path folder, const Pattern& include, std::string_view include_text,
       std::set<std::string>& folders_read, std::vector<PassedOver>& passed_over)
      : folder_(std::move(folder)),
        include_(include),
        name_reason_("the name does not match --include '" + std::string(include_text) + "'"),
        folders_read_(folders_read),
        passed_over_(passed_over) {}

  Result<std::vector<FoundFile>> run() {
    std::error_code code;
    real_ = fs::canonical(folder_, code);
    if (code) return walk_error(folder_, code);
    folders_.push_back({folder_, "", false});
    // Links wait: a folder or file that lies below the input has its own name there.
    while (!folders_.empty() || !links_.empty()) {
      auto& waiting = folders_.empty() ? links_ : folders_;
      const FoundFile next = std::move(waiting.front());
      waiting.pop_front();
      TRAINYARD_TRY(next.linked && !is_folder(next) ? take_file(next) : list(next));
    }
    std::ranges::sort(files_, {}, [](const FoundFile& file) {
      return std::pair(file.linked, file.path.generic_string());
    });
    return std::move(files_);
  }

 private:
  static bool is_folder(const FoundFile& entry) {
    std::error_code none;
    return fs::is_directory(entry.path, none);
  }

  void pass(const FoundFile& entry, std::string_view reason) {
    std::error_code none;
    std::string name = entry.name;
    if (fs::is_symlink(fs::symlink_status(entry.path, none))) {
      name += " -> " + fs::read_symlink(entry.path, none).string();
    }
    pass_over(passed_over_, reason, readable_name(name));
  }

  Status list(const FoundFile& folder) {
    std::error_code code;
    const fs::path real = fs::canonical(folder.path, code);
    if (code) return walk_error(folder.path, code);
    if (!folder.name.empty() && is_around(real, real_)) {
      pass(folder, "a folder that holds the input");
      return {};
    }
    if (!folders_read_.insert(real.string()).second) {
      pass(folder, "a folder that is read already");
      return {};
    }
    fs::directory_iterator entry(folder.path, code);
    if (code == std::errc::permission_denied && !folder.name.empty()) {
      pass(folder, "a folder without read permission");
      return {};
    }
    std::vector<fs::path> names;
    for (; !code && entry != fs::directory_iterator(); entry.increment(code)) {
      if (++entries_ > kEntriesMax) {
        return Error{ErrorCode::kInvalidConfig,
                     folder_.string() + ": found more than " + std::to_string(kEntriesMax) +
                         " files and folders, wanted fewer; prepare its folders one by one"};
      }
      names.push_back(entry->path().filename());
    }
    if (code) return walk_error(folder.path, code);
    std::ranges::sort(names, {}, [](const fs::path& name) { return name.string(); });
    const bool is_volume = std::ranges::find(names, fs::path(kVolumeLink)) != names.end();
    for (const fs::path& name : names) {
      FoundFile found{folder.path / name,
                      folder.name.empty() ? name.string() : folder.name + "/" + name.string(),
                      folder.linked};
      if (is_volume && name.string().starts_with("..")) {
        pass(found,
             "a folder in which Kubernetes keeps a mounted volume, read through the links to it");
        continue;
      }
      TRAINYARD_TRY(visit(std::move(found)));
    }
    return {};
  }

  Status visit(FoundFile entry) {
    std::error_code code;
    const bool is_link = fs::is_symlink(fs::symlink_status(entry.path, code));
    const fs::file_status status = fs::status(entry.path, code);
    switch (status.type()) {
      case fs::file_type::directory:
      case fs::file_type::regular:
        break;
      case fs::file_type::not_found:
        pass(entry, is_link ? "a link to a missing file" : "deleted while the folder was read");
        return {};
      case fs::file_type::none:
      case fs::file_type::unknown:
        pass(entry, "cannot be examined: " + code.message());
        return {};
      default:
        pass(entry, kind_of(status.type()));
        return {};
    }
    if (status.type() == fs::file_type::directory && is_hidden(entry.path)) {
      pass(entry, "a hidden folder");
      return {};
    }
    entry.linked = entry.linked || is_link;
    if (is_link) {
      links_.push_back(std::move(entry));
      return {};
    }
    if (status.type() == fs::file_type::regular) return take_file(entry);
    folders_.push_back(std::move(entry));
    return {};
  }

  Status take_file(const FoundFile& file) {
    const std::string own_name = file.path.filename().string();
    TRAINYARD_ASSIGN(const bool wanted, include_.found_in(readable_name(own_name)));
    if (!wanted) {
      pass(file, name_reason_);
    } else if (own_name.starts_with("._")) {
      pass(file, "metadata that macOS keeps for a file (AppleDouble), not text");
    } else {
      files_.push_back(file);
    }
    return {};
  }

  fs::path folder_;
  fs::path real_;
  const Pattern& include_;
  std::string name_reason_;
  std::set<std::string>& folders_read_;
  std::vector<PassedOver>& passed_over_;
  int64_t entries_ = 0;
  std::deque<FoundFile> folders_;
  std::deque<FoundFile> links_;
  std::vector<FoundFile> files_;
};

}  // namespace

std::string readable_name(std::string_view name) {
  std::string readable;
  for (size_t at = 0; at < name.size();) {
    const int length = text::utf8_length_at(name, at);
    readable += length > 0 ? name.substr(at, static_cast<size_t>(length)) : "\xEF\xBF\xBD";
    at += static_cast<size_t>(std::max(1, length));
  }
  return readable;
}

void pass_over(std::vector<PassedOver>& groups, std::string_view reason, std::string name) {
  auto group = std::ranges::find(groups, reason, &PassedOver::reason);
  if (group == groups.end()) group = groups.insert(group, {std::string(reason), 0, {}});
  ++group->count;
  if (group->names.size() < kNamesMax) group->names.push_back(std::move(name));
}

std::string describe(const PassedOver& group, size_t names_max) {
  std::string text = group.reason + " (" + std::to_string(group.count) + "): ";
  const size_t shown = std::min(names_max, group.names.size());
  for (size_t i = 0; i < shown; ++i)
    text += (i > 0 ? ", " : "") + group.names[i];
  const int64_t more = group.count - static_cast<int64_t>(shown);
  if (more > 0) text += " and " + std::to_string(more) + " more";
  return text;
}

Result<std::vector<FoundFile>> walk_folder(const fs::path& folder, const Pattern& include,
                                           std::string_view include_text,
                                           std::set<std::string>& folders_read,
                                           std::vector<PassedOver>& passed_over) {
  return Walk(folder, include, include_text, folders_read, passed_over).run();
}

}  // namespace trainyard::data
