#include "tests/support/fake_cublaslt.h"

#include <bit>
#include <cstring>
#include <functional>

#include "kernels/simt/emulator/state.h"

namespace trainyard::testing_support {
namespace {

namespace lt = kernels::cuda::cublaslt;
using simt::detail::Access;
using simt::detail::Lock;  // ranks may be threads

FakeCublasLt the_fake;

struct MatrixLayout {
  int type;
  uint64_t rows, columns;
  int64_t ld;
};
struct MatmulDescription {
  int transpose_a = 0, transpose_b = 0, epilogue = 1;
  const void* bias = nullptr;
};
struct MatmulPreference {
  size_t workspace_bytes = 0;
  uint32_t reduction_schemes = 7;
};

int fail(const char* function) {
  return the_fake.fails == function ? the_fake.failure : lt::kSuccess;
}
int complain(const std::string& text) {
  const Lock lock(simt::detail::device.mutex);
  if (the_fake.complaint.empty()) the_fake.complaint = text;
  return lt::kInvalidValue;
}
template <typename T, typename... A>
int make(void** to, const char* function, A... arguments) {
  if (const int status = fail(function); status != lt::kSuccess) return status;
  const Lock lock(simt::detail::device.mutex);
  *to = new T{arguments...};
  ++the_fake.live_objects;
  return lt::kSuccess;
}
template <typename T>
int drop(void* object) {
  const Lock lock(simt::detail::device.mutex);
  delete static_cast<T*>(object);
  --the_fake.live_objects;
  return lt::kSuccess;
}

int set_description(void* description, int attribute, const void* value, size_t bytes) {
  auto& d = *static_cast<MatmulDescription*>(description);
  if (attribute == lt::kBiasPointer) {
    if (bytes != sizeof d.bias) return complain("a bias pointer of another size");
    std::memcpy(&d.bias, value, bytes);
    return lt::kSuccess;
  }
  int* const to = attribute == lt::kTransposeA   ? &d.transpose_a
                  : attribute == lt::kTransposeB ? &d.transpose_b
                  : attribute == lt::kEpilogue   ? &d.epilogue
                                                 : nullptr;
  if (to == nullptr || bytes != sizeof *to) return complain("an unknown attribute");
  std::memcpy(to, value, bytes);
  // The epilogues that are slower than separate kernels: DGELU_BGRAD, BGRADA, BGRADB.
  if (attribute == lt::kEpilogue && *to != 1 && *to != lt::kEpilogueBias) {
    return complain("an epilogue that is never used");
  }
  return lt::kSuccess;
}
int set_preference(void* preference, int attribute, const void* value, size_t bytes) {
  auto& p = *static_cast<MatmulPreference*>(preference);
  if (attribute == lt::kMaxWorkspace && bytes == sizeof p.workspace_bytes) {
    std::memcpy(&p.workspace_bytes, value, bytes);
    return lt::kSuccess;
  }
  uint32_t number = 0;
  if (bytes != sizeof number) return complain("a preference of another size");
  std::memcpy(&number, value, bytes);
  if (attribute == lt::kReductionSchemes) {
    p.reduction_schemes = number;
  } else if (attribute < lt::kAlignmentOfA || attribute > lt::kAlignmentOfA + 3 || number != 16) {
    return complain("an unknown preference");
  }
  return lt::kSuccess;
}

constexpr uint64_t kMagic = 0x66616b65706c616e;

/// The fake's words of an algorithm: kMagic, index, split-K, workspace, reduction scheme.
int heuristics(void*, void* description, void*, void*, void*, void*, void* preference,
               int requested, lt::Heuristic* results, int* returned) {
  const Lock lock(simt::detail::device.mutex);
  ++the_fake.heuristics_asked;
  if (const int status = fail("heuristics"); status != lt::kSuccess) return status;
  const auto& d = *static_cast<MatmulDescription*>(description);
  if (d.epilogue == lt::kEpilogueBias && d.bias == nullptr) return complain("asked without a bias");
  const auto& p = *static_cast<MatmulPreference*>(preference);
  *returned = 0;
  for (size_t i = 0; i < the_fake.split_k.size() && *returned < requested; ++i) {
    const size_t workspace = the_fake.needs_workspace_bytes * i;
    const bool splits = the_fake.split_k[i] > 1;
    if (workspace > p.workspace_bytes || (splits && p.reduction_schemes == 0)) continue;
    lt::Heuristic& h = results[(*returned)++];
    h = {};
    h.algorithm.data = {kMagic, i, static_cast<uint64_t>(the_fake.split_k[i]), workspace,
                        splits ? uint64_t{2} : uint64_t{0}};
    h.workspace_bytes = workspace;
  }
  return *returned > 0 ? lt::kSuccess : lt::kNotSupported;
}
/// The word of an algorithm that a setting is in, or -1.
int place_of(int attribute) {
  return attribute == lt::kSplitK ? 2 : attribute == lt::kReductionScheme ? 4 : -1;
}
int algorithm_config(const lt::Algorithm* algorithm, int attribute, void* value, size_t bytes,
                     size_t* written) {
  const int at = place_of(attribute);
  if (at < 0 || bytes != sizeof(int32_t)) return complain("an unknown setting");
  const auto number = static_cast<int32_t>(algorithm->data[static_cast<size_t>(at)]);
  std::memcpy(value, &number, sizeof number);
  *written = sizeof number;
  return lt::kSuccess;
}
int set_algorithm_config(lt::Algorithm* algorithm, int attribute, const void* value, size_t bytes) {
  const int at = place_of(attribute);
  if (at < 0 || bytes != sizeof(int32_t)) return complain("an unknown setting");
  int32_t number = 0;
  std::memcpy(&number, value, sizeof number);
  algorithm->data[static_cast<size_t>(at)] = static_cast<uint64_t>(number);
  return lt::kSuccess;
}
int check_algorithm(void*, void*, void*, void*, void*, void*, const lt::Algorithm* algorithm,
                    lt::Heuristic* result) {
  if (const int status = fail("check"); status != lt::kSuccess) return status;
  const bool splits = algorithm->data[2] > 1;
  if (algorithm->data[0] != kMagic || splits != (algorithm->data[4] != 0)) return lt::kInvalidValue;
  if (algorithm->data[1] == the_fake.refused_algorithm) return lt::kNotSupported;
  *result = {};
  result->algorithm = *algorithm;
  result->workspace_bytes = algorithm->data[3];
  return lt::kSuccess;
}

/// A product with everything that it needs copied, for when the stream comes to it.
struct Product {
  MatmulDescription description;
  MatrixLayout a, b, c;
  float beta;
  const std::byte* a_data;
  const std::byte* b_data;
  std::byte* c_data;
  bool descending;

  static float read(const MatrixLayout& l, const std::byte* data, uint64_t row, uint64_t column) {
    const size_t at = row + column * static_cast<size_t>(l.ld);
    if (l.type == lt::kReal32F) {
      float x;
      std::memcpy(&x, data + at * 4, 4);
      return x;
    }
    uint16_t bits;
    std::memcpy(&bits, data + at * 2, 2);
    return simt::to_float(simt::BFloat16{bits});
  }
  static uint64_t bytes(const MatrixLayout& l) {
    return (static_cast<uint64_t>(l.ld) * (l.columns - 1) + l.rows) *
           (l.type == lt::kReal32F ? 4 : 2);
  }
  void touch_all() const {
    using simt::detail::touch;
    touch(a_data, bytes(a), Access::kRead, nullptr);
    touch(b_data, bytes(b), Access::kRead, nullptr);
    if (beta != 0) touch(c_data, bytes(c), Access::kRead, nullptr);
    touch(c_data, bytes(c), Access::kWrite, nullptr);
  }
  void run() const {
    touch_all();
    const uint64_t depth = description.transpose_a != 0 ? a.rows : a.columns;
    const uint64_t steps = (depth + 15) / 16;
    for (uint64_t j = 0; j < c.columns; ++j) {
      for (uint64_t i = 0; i < c.rows; ++i) {
        float sum = 0;
        for (uint64_t step = 0; step < steps; ++step) {
          const uint64_t first = (descending ? steps - 1 - step : step) * 16;
          double part = static_cast<double>(sum);
          for (uint64_t k = first; k < std::min(first + 16, depth); ++k) {
            part += static_cast<double>(description.transpose_a != 0 ? read(a, a_data, k, i)
                                                                     : read(a, a_data, i, k)) *
                    static_cast<double>(description.transpose_b != 0 ? read(b, b_data, j, k)
                                                                     : read(b, b_data, k, j));
          }
          sum = static_cast<float>(part);
        }
        if (beta != 0) sum += beta * read(c, c_data, i, j);
        if (description.epilogue == lt::kEpilogueBias) {
          sum += read({c.type, c.rows, 1, static_cast<int64_t>(c.rows)},
                      static_cast<const std::byte*>(description.bias), i, 0);
        }
        const size_t at = i + j * static_cast<size_t>(c.ld);
        if (c.type == lt::kReal32F) {
          std::memcpy(c_data + at * 4, &sum, 4);
        } else {
          const uint16_t bits = simt::to_bf16(sum).bits;
          std::memcpy(c_data + at * 2, &bits, 2);
        }
      }
    }
  }
};

int matmul(void*, void* description, const void* alpha, const void* a, void* a_layout,
           const void* b, void* b_layout, const void* beta, const void* c, void* c_layout, void* d,
           void* d_layout, const lt::Algorithm* algorithm, void* workspace, size_t workspace_bytes,
           cudaStream_t stream) {
  if (const int status = fail("matmul"); status != lt::kSuccess) return status;
  const auto& desc = *static_cast<MatmulDescription*>(description);
  const auto& la = *static_cast<MatrixLayout*>(a_layout);
  const auto& lb = *static_cast<MatrixLayout*>(b_layout);
  const auto& lc = *static_cast<MatrixLayout*>(c_layout);
  const auto misaligned = [](const void* p, size_t by) {
    return reinterpret_cast<uintptr_t>(p) % by != 0;
  };
  if (*static_cast<const float*>(alpha) != 1) return complain("alpha is not 1");
  if (c != d || c_layout != d_layout) return complain("C and D differ");
  if (algorithm->data[0] != kMagic) return complain("an algorithm of another library");
  if (workspace_bytes != algorithm->data[3]) return complain("another plan's workspace");
  if (workspace_bytes > 0 && (workspace == nullptr || misaligned(workspace, 256))) {
    return complain("the workspace is null or misaligned");
  }
  if (misaligned(a, 16) || misaligned(b, 16) || misaligned(c, 16)) {
    return complain("an operand is misaligned");
  }
  for (const MatrixLayout* l : {&la, &lb, &lc}) {
    if (l->ld < static_cast<int64_t>(l->rows))
      return complain("a leading dimension below the rows");
  }
  const bool ta = desc.transpose_a != 0;
  const bool tb = desc.transpose_b != 0;
  if ((ta ? la.columns : la.rows) != lc.rows || (tb ? lb.rows : lb.columns) != lc.columns ||
      (ta ? la.rows : la.columns) != (tb ? lb.columns : lb.rows) || la.type != lb.type) {
    return complain("dimensions that do not fit together");
  }
  if (desc.epilogue == lt::kEpilogueBias && desc.bias == nullptr) return complain("no bias");
  const Lock lock(simt::detail::device.mutex);
  ++the_fake.products;
  the_fake.splits_run.push_back(static_cast<int>(algorithm->data[2]));
  const Product product{desc,
                        la,
                        lb,
                        lc,
                        *static_cast<const float*>(beta),
                        static_cast<const std::byte*>(a),
                        static_cast<const std::byte*>(b),
                        static_cast<std::byte*>(d),
                        the_fake.descending};
  const cudaError_t error = simt::detail::enqueue(stream, "product", [=] {
    if (workspace_bytes > 0) std::memset(workspace, 0, workspace_bytes);  // it is the library's
    product.run();
  });
  return error == cudaSuccess ? lt::kSuccess : lt::kExecutionFailed;
}

int create(void** handle) { return make<int>(handle, "create", 0); }
int create_description(void** to, int compute, int scale) {
  if (compute != lt::kCompute32F || scale != lt::kReal32F) return complain("not IEEE fp32");
  return make<MatmulDescription>(to, "create_description");
}
int create_layout(void** to, int type, uint64_t rows, uint64_t columns, int64_t ld) {
  return make<MatrixLayout>(to, "create_layout", type, rows, columns, ld);
}
int create_preference(void** to) { return make<MatmulPreference>(to, "create_preference"); }

}  // namespace

FakeCublasLt& fake_cublaslt() { return the_fake; }

/// A function of the library, whose calls a test may let fail.
#define TRAINYARD_LIBRARY_CALL(name, function)                       \
  [](auto... arguments) -> int {                                     \
    const simt::LibraryCall call(name);                              \
    return call.fails() ? the_fake.failure : function(arguments...); \
  }

lt::Api fake_cublaslt_api() {
  lt::Api api;
  api.create = TRAINYARD_LIBRARY_CALL("cublasLtCreate", create);
  api.destroy = TRAINYARD_LIBRARY_CALL("cublasLtDestroy", drop<int>);
  api.version = [] { return the_fake.version; };
  api.create_description = TRAINYARD_LIBRARY_CALL("cublasLtMatmulDescCreate", create_description);
  api.destroy_description =
      TRAINYARD_LIBRARY_CALL("cublasLtMatmulDescDestroy", drop<MatmulDescription>);
  api.set_description = TRAINYARD_LIBRARY_CALL("cublasLtMatmulDescSetAttribute", set_description);
  api.create_layout = TRAINYARD_LIBRARY_CALL("cublasLtMatrixLayoutCreate", create_layout);
  api.destroy_layout = TRAINYARD_LIBRARY_CALL("cublasLtMatrixLayoutDestroy", drop<MatrixLayout>);
  api.create_preference =
      TRAINYARD_LIBRARY_CALL("cublasLtMatmulPreferenceCreate", create_preference);
  api.destroy_preference =
      TRAINYARD_LIBRARY_CALL("cublasLtMatmulPreferenceDestroy", drop<MatmulPreference>);
  api.set_preference =
      TRAINYARD_LIBRARY_CALL("cublasLtMatmulPreferenceSetAttribute", set_preference);
  api.heuristics = TRAINYARD_LIBRARY_CALL("cublasLtMatmulAlgoGetHeuristic", heuristics);
  api.algorithm_config =
      TRAINYARD_LIBRARY_CALL("cublasLtMatmulAlgoConfigGetAttribute", algorithm_config);
  api.set_algorithm_config =
      TRAINYARD_LIBRARY_CALL("cublasLtMatmulAlgoConfigSetAttribute", set_algorithm_config);
  api.check = TRAINYARD_LIBRARY_CALL("cublasLtMatmulAlgoCheck", check_algorithm);
  api.matmul = TRAINYARD_LIBRARY_CALL("cublasLtMatmul", matmul);
  return api;
}

}  // namespace trainyard::testing_support
