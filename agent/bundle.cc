#include "agent/bundle.h"

#include <link.h>
#include <set>
#include <string>
#include <system_error>

#include "agent/starter_bytes.h"
#include "common/io/file.h"

namespace trainyard::agent {
namespace {

namespace fs = std::filesystem;

constexpr char kOwnProgram[] = "/proc/self/exe";
/// Parts of libc.so.6 since glibc 2.34, which keeps these files for older libraries. The agent
/// loads none of them, but NVIDIA's libnvidia-ml.so.1, which it opens later, needs them. Images
/// have them by tools/images/packages.py.
constexpr const char* kFormerLibraries[] = {"libdl.so.2", "libpthread.so.0", "librt.so.1"};

/// What the dynamic loader has put into this process.
struct Loaded {
  fs::path loader;
  std::set<fs::path> libraries;  ///< as the loader names them: last part is what is asked for
};

/// Called with each loaded object; the program is the first (dl_iterate_phdr(3)).
int note_object(dl_phdr_info* object, size_t, void* data) {
  Loaded& loaded = *static_cast<Loaded*>(data);
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)& header = object->dlpi_phdr[i];
    if (header.p_type != PT_INTERP || !loaded.loader.empty()) continue;
    loaded.loader = reinterpret_cast<const char*>(object->dlpi_addr + header.p_vaddr);
  }
  // The kernel's own object has a name and no file.
  const std::string name = object->dlpi_name == nullptr ? "" : object->dlpi_name;
  if (name.find('/') != std::string::npos) loaded.libraries.insert(name);
  return 0;
}

Status copy_program(const fs::path& from, const fs::path& to) {
  std::error_code error;
  // A program that runs cannot be written to, but it can be replaced.
  fs::remove(to, error);
  fs::copy_file(from, to, error);
  if (!error) fs::permissions(to, fs::perms(0755), error);
  if (error) return io_error("copy " + from.string() + " to " + to.string(), error.value());
  return {};
}

Status write_starter(const fs::path& to) {
  TRAINYARD_TRY(write_file_atomic(to, starter_bytes()));
  std::error_code error;
  fs::permissions(to, fs::perms(0755), error);
  if (error) return io_error("make " + to.string() + " executable", error.value());
  return {};
}

}  // namespace

Status install_bundle(const fs::path& folder) {
  Loaded loaded;
  ::dl_iterate_phdr(note_object, &loaded);
  if (loaded.loader.empty()) {
    return Error{ErrorCode::kInvalidConfig,
                 "install: found a program without a loader to copy, wanted one that is linked "
                 "dynamically and started directly"};
  }
  TRAINYARD_TRY(make_directories(folder / kBundleLibraries));
  for (const fs::path& made : {folder, folder / kBundleLibraries}) {
    std::error_code not_ours;  // then it has the rights that its owner wanted
    fs::permissions(made, fs::perms(0755), fs::perm_options::add, not_ours);
  }
  TRAINYARD_TRY(copy_program(kOwnProgram, folder / kBundleProgram));
  TRAINYARD_TRY(copy_program(loaded.loader, folder / kBundleLoader));
  std::set<fs::path> libraries = loaded.libraries;
  for (const fs::path& library : loaded.libraries) {
    if (library.filename() != "libc.so.6") continue;
    for (const char* const former : kFormerLibraries) {
      std::error_code none;
      const fs::path beside = library.parent_path() / former;
      if (fs::exists(beside, none)) libraries.insert(beside);
    }
  }
  for (const fs::path& library : libraries) {
    if (library.filename() == loaded.loader.filename()) continue;
    TRAINYARD_TRY(copy_program(library, folder / kBundleLibraries / library.filename()));
  }
  return write_starter(folder / kBundleStarter);
}

}  // namespace trainyard::agent
