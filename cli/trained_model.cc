#include "cli/trained_model.h"

#include <utility>

namespace trainyard::cli {

Result<NamedModel> load_model(checkpoint::FileSystem& files, const std::filesystem::path& path,
                              int threads, PassedOver& passed_over) {
  NamedModel named;
  const auto load = [&](checkpoint::CheckpointReader& reader) -> Status {
    TRAINYARD_ASSIGN(named.model, engine::TrainedModel::load(reader, threads));
    return {};
  };
  TRAINYARD_ASSIGN(named.checkpoint, read_checkpoint(files, path, load, passed_over));
  return named;
}

}  // namespace trainyard::cli
