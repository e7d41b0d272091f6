// Any bytes as the files of a Hugging Face folder (tests/fuzz/frames.h; the operation is the file):
// what is opened gives every parameter of the model that it describes, with padding rows of zeros.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "tests/fuzz/frames.h"
#include "tests/fuzz/require.h"
#include "worker/hf/model_folder.h"
#include "worker/model/family.h"

namespace {

namespace engine = trainyard::engine;
namespace hf = trainyard::hf;

constexpr std::array kFiles = {"config.json",
                               "model.safetensors",
                               "model.safetensors.index.json",
                               "model-00001-of-00002.safetensors",
                               "model-00002-of-00002.safetensors",
                               "generation_config.json"};
/// Of a folder of at most 64 KiB; others are opened and not read.
constexpr int64_t kElementsMax = 1 << 20;

/// In memory where there is such a file system.
std::filesystem::path make_folder() {
  const bool in_memory = std::filesystem::is_directory("/dev/shm");
  std::string pattern = std::string(in_memory ? "/dev/shm" : "/tmp") + "/hf_folder_fuzz.XXXXXX";
  TRAINYARD_REQUIRE(::mkdtemp(pattern.data()) != nullptr, "no folder");
  return pattern;
}

/// Gone with the process.
struct Folder {
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  const std::filesystem::path path = make_folder();
};

void write_files(const std::filesystem::path& folder, std::span<const uint8_t> data) {
  std::set<std::string> given;
  Frames frames(data);
  while (const auto frame = frames.next()) {
    const char* name = kFiles.at(frame->operation % kFiles.size());
    std::ofstream out(folder / name, std::ios::binary | std::ios::trunc);
    out.write(reinterpret_cast<const char*>(frame->bytes.data()),
              static_cast<std::streamsize>(frame->bytes.size()));
    given.insert(name);
  }
  for (const char* name : kFiles) {
    if (!given.contains(name)) std::filesystem::remove(folder / name);
  }
}

void read_all(const hf::HfModel& model) {
  const auto built = engine::build_model(model.spec());
  TRAINYARD_REQUIRE(built.has_value(), "a folder of no model is opened");
  std::vector<float> values;
  for (const engine::ParamSpec& param : built->params) {
    if (param.elements() > kElementsMax) continue;
    values.assign(static_cast<size_t>(param.elements()), 1.0F);
    trainyard::layout::Rectangle whole;
    whole.shape = param.tensor.shape;
    whole.offset.assign(whole.shape.size(), 0);
    TRAINYARD_REQUIRE(model.read(param, whole, values).has_value(), param.name().c_str());
  }
}

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): the name that libFuzzer calls
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Folder folder;
  write_files(folder.path, std::span(data, size));
  if (const auto model = hf::load_model(folder.path)) read_all(**model);
  return 0;
}
