#include "worker/runtime/parameter_store.h"

#include <algorithm>
#include <numeric>

#include "common/base/check.h"

namespace trainyard::engine {
namespace {

/// The lowest chunk that uses each parameter: the last to add to its gradient.
std::vector<int> lowest_chunks(const Model& model, std::span<const int> chunk_of_layer) {
  std::vector<int> lowest(model.params.size(), static_cast<int>(model.layers.size()));
  for (size_t l = 0; l < model.layers.size(); ++l) {
    for (const Node& node : model.layers[l].nodes) {
      for (const int param : node.params) {
        int& chunk = lowest[static_cast<size_t>(param)];
        chunk = std::min(chunk, chunk_of_layer[l]);
      }
    }
  }
  return lowest;
}

std::vector<GradientBucket> make_buckets(const Model& model, const std::vector<int>& lowest,
                                         int64_t bucket_bytes) {
  std::vector<int> order(model.params.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return lowest[static_cast<size_t>(a)] > lowest[static_cast<size_t>(b)];
  });
  std::vector<GradientBucket> buckets;
  int64_t next = 0;
  for (const int param : order) {
    const bool full = !buckets.empty() && buckets.back().elements * 8 >= bucket_bytes;
    if (buckets.empty() || full) buckets.push_back({.first_element = next});
    GradientBucket& bucket = buckets.back();
    const int64_t count = model.params[static_cast<size_t>(param)].elements();
    bucket.params.push_back(param);
    bucket.elements += count;
    bucket.ready_chunk = lowest[static_cast<size_t>(param)];
    next += count;
  }
  return buckets;
}

}  // namespace

Result<std::unique_ptr<ParameterStore>> ParameterStore::create(const Model& model, DType compute,
                                                               std::span<const int> chunk_of_layer,
                                                               int64_t bucket_bytes,
                                                               MemorySource& memory) {
  TRAINYARD_CHECK(chunk_of_layer.size() == model.layers.size());
  auto store = std::unique_ptr<ParameterStore>(new ParameterStore());
  store->compute_ = compute;
  store->buckets_ = make_buckets(model, lowest_chunks(model, chunk_of_layer), bucket_bytes);
  store->offsets_.resize(model.params.size());
  store->counts_.resize(model.params.size());
  store->bucket_of_.resize(model.params.size());
  for (size_t b = 0; b < store->buckets_.size(); ++b) {
    int64_t at = store->buckets_[b].first_element;
    for (const int param : store->buckets_[b].params) {
      const auto i = static_cast<size_t>(param);
      store->offsets_[i] = at;
      store->counts_[i] = model.params[i].elements();
      store->bucket_of_[i] = static_cast<int>(b);
      at += store->counts_[i];
    }
    store->elements_ = at;
  }
  store->name_order_.resize(model.params.size());
  std::iota(store->name_order_.begin(), store->name_order_.end(), 0);
  std::sort(store->name_order_.begin(), store->name_order_.end(), [&](int a, int b) {
    return model.params[static_cast<size_t>(a)].name() <
           model.params[static_cast<size_t>(b)].name();
  });

  TRAINYARD_ASSIGN(store->block_, memory.allocate(store->bytes()));
  std::byte* at = store->block_->bytes().data();
  const auto take = [&](int64_t bytes_each) {
    std::byte* begin = at;
    at += bytes_each * store->elements_;
    return begin;
  };
  store->accumulator_ = reinterpret_cast<int64_t*>(take(8));
  store->master_ = reinterpret_cast<float*>(take(4));
  store->m_ = reinterpret_cast<float*>(take(4));
  store->v_ = reinterpret_cast<float*>(take(4));
  if (compute != DType::kFloat32)
    store->copy_ = reinterpret_cast<uint16_t*>(take(size_of(compute)));
  return store;
}

void* ParameterStore::compute_copy(int param) {
  if (compute_ == DType::kFloat32) return master_ + offset(param);
  return copy_ + offset(param);
}

std::span<int64_t> ParameterStore::bucket_accumulator(int bucket) {
  const GradientBucket& b = buckets_[static_cast<size_t>(bucket)];
  return {accumulator_ + b.first_element, static_cast<size_t>(b.elements)};
}

std::span<float> ParameterStore::bucket_gradient(int bucket) {
  const GradientBucket& b = buckets_[static_cast<size_t>(bucket)];
  return {reinterpret_cast<float*>(accumulator_ + b.first_element),
          static_cast<size_t>(b.elements)};
}

std::span<const float> ParameterStore::gradient(int param) const {
  const GradientBucket& b = buckets_[static_cast<size_t>(bucket_of_[static_cast<size_t>(param)])];
  const auto* base = reinterpret_cast<const float*>(accumulator_ + b.first_element);
  return {base + (offset(param) - b.first_element), count(param)};
}

}  // namespace trainyard::engine
