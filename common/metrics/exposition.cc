#include "common/metrics/exposition.h"

#include <algorithm>
#include <sstream>
#include <utility>
#include <vector>

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include "common/base/check.h"

namespace trainyard::metrics {
namespace {

constexpr char kJobLabel[] = "trainer_job";
constexpr char kNamespaceLabel[] = "trainer_namespace";

prometheus::MetricType type_of(Kind kind) {
  switch (kind) {
    case Kind::kCounter:
      return prometheus::MetricType::Counter;
    case Kind::kGauge:
      return prometheus::MetricType::Gauge;
    case Kind::kHistogram:
      return prometheus::MetricType::Histogram;
  }
  return prometheus::MetricType::Untyped;
}

}  // namespace

std::string_view name_of(Kind kind) {
  switch (kind) {
    case Kind::kCounter:
      return "counter";
    case Kind::kGauge:
      return "gauge";
    case Kind::kHistogram:
      return "histogram";
  }
  return "?";
}

struct Exposition::Impl {
  std::string trainer_job;
  std::string trainer_namespace;
  std::vector<prometheus::MetricFamily> families;

  prometheus::MetricFamily& family_of(const Family& family) {
    const auto it = std::find_if(families.begin(), families.end(),
                                 [&](const auto& known) { return known.name == family.name; });
    if (it != families.end()) return *it;
    prometheus::MetricFamily added;
    added.name = std::string(family.name);
    added.help = std::string(family.help);
    added.type = type_of(family.kind);
    families.push_back(std::move(added));
    return families.back();
  }

  prometheus::ClientMetric& add_series(const Family& family,
                                       std::initializer_list<std::string_view> label_values) {
    const auto names = std::count_if(family.labels.begin(), family.labels.end(),
                                     [](std::string_view name) { return !name.empty(); });
    TRAINYARD_CHECK(static_cast<size_t>(names) == label_values.size());
    prometheus::ClientMetric series;
    if (!trainer_job.empty()) series.label.push_back({kJobLabel, trainer_job});
    if (!trainer_namespace.empty()) series.label.push_back({kNamespaceLabel, trainer_namespace});
    const auto* name = family.labels.begin();
    for (const std::string_view value : label_values)
      series.label.push_back({std::string(*name++), std::string(value)});
    auto& metrics = family_of(family).metric;
    metrics.push_back(std::move(series));
    return metrics.back();
  }
};

Exposition::Exposition(std::string trainer_job, std::string trainer_namespace)
    : impl_(std::make_unique<Impl>()) {
  about(std::move(trainer_job), std::move(trainer_namespace));
}
Exposition::Exposition(Exposition&&) noexcept = default;
Exposition::~Exposition() = default;

void Exposition::about(std::string trainer_job, std::string trainer_namespace) {
  impl_->trainer_job = std::move(trainer_job);
  impl_->trainer_namespace = std::move(trainer_namespace);
}

void Exposition::declare(const Family& family) { impl_->family_of(family); }

void Exposition::add(const Family& family, std::initializer_list<std::string_view> label_values,
                     double value) {
  TRAINYARD_CHECK(family.kind != Kind::kHistogram);
  prometheus::ClientMetric& series = impl_->add_series(family, label_values);
  if (family.kind == Kind::kCounter) {
    TRAINYARD_CHECK(value >= 0);
    series.counter.value = value;
  } else {
    series.gauge.value = value;
  }
}

void Exposition::add(const Family& family, std::initializer_list<std::string_view> label_values,
                     const HistogramValue& value) {
  TRAINYARD_CHECK(family.kind == Kind::kHistogram);
  TRAINYARD_CHECK(value.counts.size() == value.bounds.size() + 1);
  prometheus::ClientMetric& series = impl_->add_series(family, label_values);
  uint64_t cumulative = 0;
  for (size_t i = 0; i < value.bounds.size(); ++i) {
    cumulative += static_cast<uint64_t>(value.counts[i]);
    prometheus::ClientMetric::Bucket bucket;
    bucket.cumulative_count = cumulative;
    bucket.upper_bound = value.bounds[i];
    series.histogram.bucket.push_back(bucket);
  }
  series.histogram.sample_count = cumulative + static_cast<uint64_t>(value.counts.back());
  series.histogram.sample_sum = value.sum;
}

std::string Exposition::text() const {
  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, impl_->families);
  return std::move(out).str();
}

}  // namespace trainyard::metrics
