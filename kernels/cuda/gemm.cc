#include "kernels/cuda/gemm.h"

#include <algorithm>
#include <chrono>
#include <sstream>

#include "common/base/seconds_text.h"
#include "common/io/file.h"
#include "kernels/cuda/cuda_error.h"
#include "kernels/cuda/poll.h"

namespace trainyard::kernels::cuda {
namespace {

using cublaslt::Heuristic;

constexpr int kRequested = 32;  // of which those that fit are kept
constexpr size_t kMeasured = 8;
constexpr int kRuns = 5;  // each measured plan; the fastest counts
constexpr int64_t kPlanFileBytesMax = int64_t{1} << 20U;
constexpr uint32_t kAlignment = 16;

int type_of(DType type) {
  return type == DType::kFloat32 ? cublaslt::kReal32F : cublaslt::kReal16BF;
}
bool is_type(DType type) { return type == DType::kFloat32 || type == DType::kBFloat16; }

std::string words(const GemmProblem& p) {
  std::ostringstream text;
  text << p.m << ' ' << p.n << ' ' << p.k << ' ' << p.transpose_a << p.transpose_b << ' '
       << static_cast<int>(p.input) << ' ' << static_cast<int>(p.output) << ' ' << p.lda << ' '
       << p.ldb << ' ' << p.ldc << ' ' << p.accumulate << p.has_bias;
  return text.str();
}

Error failed(const std::string& what, int status) {
  return {ErrorCode::kUnavailable, "cuBLASLt: " + what + " gave status " + std::to_string(status)};
}

Status check(const GemmProblem& p) {
  const int64_t a_columns = p.transpose_a ? p.m : p.k;
  const int64_t b_columns = p.transpose_b ? p.k : p.n;
  std::string fault;
  if (p.m <= 0 || p.n <= 0 || p.k <= 0) fault = "has an empty dimension";
  if (!is_type(p.input) || !is_type(p.output)) fault = "has a type other than fp32 and bf16";
  if (p.input == DType::kFloat32 && p.output != DType::kFloat32) fault = "is of fp32 into bf16";
  if (p.lda < a_columns || p.ldb < b_columns || p.ldc < p.n) {
    fault = "has rows that overlap (lda, ldb or ldc is less than a row)";
  }
  if (p.lda * size_of(p.input) % 16 != 0 || p.ldb * size_of(p.input) % 16 != 0 ||
      p.ldc * size_of(p.output) % 16 != 0) {
    fault = "has rows that are not multiples of 16 bytes";
  }
  if (fault.empty()) return {};
  return Error{ErrorCode::kInvalidConfig,
               "matrix product (m n k, transposed, types, lda ldb ldc, "
               "+= and bias: " +
                   words(p) + ") " + fault};
}

}  // namespace

/// A row-major C = A B is a column-major C^T = B^T A^T: the library's first operand is our B.
struct Gemm::Plan {
  const cublaslt::Api* api = nullptr;
  cublaslt::Description description = nullptr;
  cublaslt::Layout first = nullptr, second = nullptr, result = nullptr;
  Heuristic choice;

  explicit Plan(const cublaslt::Api* functions) : api(functions) {}
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  ~Plan() {
    if (description != nullptr) api->destroy_description(description);
    for (cublaslt::Layout layout : {first, second, result}) {
      if (layout != nullptr) api->destroy_layout(layout);
    }
  }
};

Gemm::Gemm(const cublaslt::Api& api, GemmOptions options)
    : api_(api), options_(std::move(options)) {}
Gemm::~Gemm() {
  plans_.clear();
  if (handle_ != nullptr) api_.destroy(handle_);
}

Result<std::unique_ptr<Gemm>> Gemm::create(const cublaslt::Api& api, const GemmOptions& options) {
  std::unique_ptr<Gemm> gemm(new Gemm(api, options));
  if (const int status = api.create(&gemm->handle_); status != cublaslt::kSuccess) {
    return failed("cublasLtCreate", status);
  }
  gemm->read_plans();
  return gemm;
}

Result<std::unique_ptr<Gemm::Plan>> Gemm::describe(const GemmProblem& p, const void* bias) const {
  auto plan = std::make_unique<Plan>(&api_);
  const auto layout = [&](cublaslt::Layout* to, DType type, bool transposed, int64_t rows,
                          int64_t columns, int64_t ld) {
    // Row-major [rows, columns] is column-major [columns, rows].
    if (transposed) std::swap(rows, columns);
    return api_.create_layout(to, type_of(type), static_cast<uint64_t>(columns),
                              static_cast<uint64_t>(rows), ld);
  };
  const int of_first = p.transpose_b ? cublaslt::kOperationT : cublaslt::kOperationN;
  const int of_second = p.transpose_a ? cublaslt::kOperationT : cublaslt::kOperationN;
  int status =
      api_.create_description(&plan->description, cublaslt::kCompute32F, cublaslt::kReal32F);
  const auto set = [&](int attribute, const auto& value) {
    if (status == cublaslt::kSuccess) {
      status = api_.set_description(plan->description, attribute, &value, sizeof value);
    }
  };
  set(cublaslt::kTransposeA, of_first);
  set(cublaslt::kTransposeB, of_second);
  if (p.has_bias) {
    set(cublaslt::kEpilogue, cublaslt::kEpilogueBias);
    set(cublaslt::kBiasPointer, bias);  // the heuristics look at its alignment
  }
  if (status == cublaslt::kSuccess) {
    status = layout(&plan->first, p.input, p.transpose_b, p.k, p.n, p.ldb);
  }
  if (status == cublaslt::kSuccess) {
    status = layout(&plan->second, p.input, p.transpose_a, p.m, p.k, p.lda);
  }
  if (status == cublaslt::kSuccess) {
    status = layout(&plan->result, p.output, false, p.m, p.n, p.ldc);
  }
  if (status != cublaslt::kSuccess) return failed("describing product " + words(p), status);
  return plan;
}

Result<std::vector<Heuristic>> Gemm::ask(const Plan& plan, bool split_k) const {
  cublaslt::Preference preference = nullptr;
  if (const int status = api_.create_preference(&preference); status != cublaslt::kSuccess) {
    return failed("cublasLtMatmulPreferenceCreate", status);
  }
  std::vector<Heuristic> found(kRequested);
  int returned = 0;
  int status = api_.set_preference(preference, cublaslt::kMaxWorkspace, &options_.workspace_bytes,
                                   sizeof options_.workspace_bytes);
  for (int operand = 0; operand < 4 && status == cublaslt::kSuccess; ++operand) {
    status = api_.set_preference(preference, cublaslt::kAlignmentOfA + operand, &kAlignment,
                                 sizeof kAlignment);
  }
  if (!split_k && status == cublaslt::kSuccess) {
    status = api_.set_preference(preference, cublaslt::kReductionSchemes, &cublaslt::kNoReduction,
                                 sizeof cublaslt::kNoReduction);
  }
  if (status == cublaslt::kSuccess) {
    status = api_.heuristics(handle_, plan.description, plan.first, plan.second, plan.result,
                             plan.result, preference, kRequested, found.data(), &returned);
  }
  api_.destroy_preference(preference);
  if (status == cublaslt::kNotSupported) return std::vector<Heuristic>();
  if (status != cublaslt::kSuccess) return failed("cublasLtMatmulAlgoGetHeuristic", status);
  found.resize(static_cast<size_t>(returned));
  return found;
}

bool Gemm::splits_k(const Heuristic& choice) const {
  int32_t split_k = 0;
  size_t written = 0;
  return api_.algorithm_config(&choice.algorithm, cublaslt::kSplitK, &split_k, sizeof split_k,
                               &written) != cublaslt::kSuccess ||
         split_k > 1;
}

/// Whether the library takes the algorithm for the problem, within the workspace.
bool Gemm::fits(const Plan& plan, Heuristic& choice, bool splits) const {
  Heuristic checked;
  if (api_.check(handle_, plan.description, plan.first, plan.second, plan.result, plan.result,
                 &choice.algorithm, &checked) != cublaslt::kSuccess ||
      checked.workspace_bytes > options_.workspace_bytes) {
    return false;
  }
  choice.workspace_bytes = checked.workspace_bytes;
  return splits || !splits_k(choice);
}

Result<std::vector<Heuristic>> Gemm::candidates(const Plan& plan, bool splits) const {
  TRAINYARD_ASSIGN(std::vector<Heuristic> found, ask(plan, splits));
  std::erase_if(found, [&](const Heuristic& h) {
    return h.status != cublaslt::kSuccess || h.workspace_bytes > options_.workspace_bytes ||
           (!splits && splits_k(h));
  });
  if (found.empty() && !splits) {  // the heuristics know only plans that split: unsplit
    TRAINYARD_ASSIGN(found, ask(plan, true));
    std::erase_if(found, [&](Heuristic& h) {
      const int32_t one = 1;
      return h.status != cublaslt::kSuccess ||
             api_.set_algorithm_config(&h.algorithm, cublaslt::kSplitK, &one, sizeof one) !=
                 cublaslt::kSuccess ||
             api_.set_algorithm_config(&h.algorithm, cublaslt::kReductionScheme,
                                       &cublaslt::kNoReduction,
                                       sizeof cublaslt::kNoReduction) != cublaslt::kSuccess ||
             !fits(plan, h, false);
    });
  }
  if (found.size() > kMeasured) found.resize(kMeasured);
  return found;
}

Status Gemm::enqueue(const Plan& plan, const GemmProblem& p, const GemmOperands& o,
                     cudaStream_t stream) const {
  for (const void* pointer : {o.a, o.b, static_cast<const void*>(o.c)}) {
    if (pointer == nullptr || reinterpret_cast<uintptr_t>(pointer) % kAlignment != 0) {
      return Error{ErrorCode::kInternal, "matrix product " + words(p) +
                                             ": an operand is null or not aligned to 16 bytes"};
    }
  }
  if (p.has_bias) {
    if (o.bias == nullptr || reinterpret_cast<uintptr_t>(o.bias) % kAlignment != 0) {
      return Error{ErrorCode::kInternal,
                   "matrix product " + words(p) + ": the bias is null or not aligned to 16 bytes"};
    }
    const int status =
        api_.set_description(plan.description, cublaslt::kBiasPointer, &o.bias, sizeof o.bias);
    if (status != cublaslt::kSuccess) return failed("setting the bias of " + words(p), status);
  }
  const float alpha = 1;
  const float beta = p.accumulate ? 1 : 0;
  const int status = api_.matmul(
      handle_, plan.description, &alpha, o.b, plan.first, o.a, plan.second, &beta, o.c, plan.result,
      o.c, plan.result, &plan.choice.algorithm, o.workspace, plan.choice.workspace_bytes, stream);
  if (status != cublaslt::kSuccess) return failed("product " + words(p), status);
  return {};
}

Result<float> Gemm::measure(const Plan& plan, const GemmProblem& p, const GemmOperands& o,
                            cudaStream_t stream) {
  cudaEvent_t events[2] = {};
  const auto accept = [&](cudaError_t error) -> Status {
    if (error == cudaSuccess) return {};
    (void)cudaGetLastError();  // told of here
    return cuda_error("measuring product " + words(p), error);
  };
  const auto run_once = [&]() -> Result<float> {
    TRAINYARD_TRY(accept(cudaEventRecord(events[0], stream)));
    TRAINYARD_TRY(enqueue(plan, p, o, stream));
    TRAINYARD_TRY(accept(cudaEventRecord(events[1], stream)));
    TRAINYARD_TRY(wait_for(events[1], p));
    float ms = 0;
    TRAINYARD_TRY(accept(cudaEventElapsedTime(&ms, events[0], events[1])));
    return ms;
  };
  const auto best_run = [&]() -> Result<float> {
    for (cudaEvent_t& event : events)
      TRAINYARD_TRY(accept(cudaEventCreateWithFlags(&event, 0)));
    float best = -1;
    for (int run = 0; run <= kRuns; ++run) {  // the first is not counted
      TRAINYARD_ASSIGN(const float ms, run_once());
      if (run > 0 && (best < 0 || ms < best)) best = ms;
    }
    return best;
  };
  Result<float> best = best_run();
  for (cudaEvent_t event : events) {
    if (event != nullptr) cudaEventDestroy(event);
  }
  return best;
}

Status Gemm::wait_for(cudaEvent_t event, const GemmProblem& p) const {
  const cudaError_t error =
      poll([event] { return cudaEventQuery(event); }, {.deadline = options_.deadline});
  if (error == cudaSuccess) return {};
  if (error != cudaErrorNotReady) return cuda_error("product " + words(p), error);
  return Error{ErrorCode::kDeadline, "CUDA: measuring product " + words(p) +
                                         " was not done within " + seconds_text(options_.deadline) +
                                         "; a kernel hangs, or the GPU is shared with others"};
}

Status Gemm::prepare(const GemmProblem& problem, const GemmOperands& operands,
                     cudaStream_t stream) {
  if (plans_.contains(problem)) return {};
  TRAINYARD_TRY(check(problem));
  TRAINYARD_ASSIGN(std::unique_ptr<Plan> plan, describe(problem, operands.bias));
  const bool splits = options_.split_k || problem.any_order;
  if (const auto kept = kept_.find(words(problem));
      !problem.any_order && kept != kept_.end() && fits(*plan, kept->second, splits)) {
    plan->choice = kept->second;
    plans_[problem] = std::move(plan);
    return {};
  }
  TRAINYARD_ASSIGN(std::vector<Heuristic> found, candidates(*plan, splits));
  if (problem.any_order) {
    std::erase_if(found, [&](Heuristic& h) { return !fits(*plan, h, true); });
    if (!found.empty()) {
      plan->choice = found.front();
      plans_[problem] = std::move(plan);
      return {};
    }
  }
  if (found.empty()) {
    return Error{ErrorCode::kUnavailable, std::string("cuBLASLt has no plan ") +
                                              (splits ? "" : "with split-K 1 ") + "within " +
                                              std::to_string(options_.workspace_bytes) +
                                              " bytes of workspace for product " + words(problem)};
  }
  float best = -1;
  Heuristic choice = found.front();
  for (const Heuristic& candidate : found) {
    if (found.size() == 1 || !options_.measures) break;
    plan->choice = candidate;
    const Result<float> ms = measure(*plan, problem, operands, stream);
    if (!ms) return ms.error();
    if (best < 0 || *ms < best) {
      best = *ms;
      choice = candidate;
    }
  }
  plan->choice = choice;
  kept_[words(problem)] = choice;
  plans_[problem] = std::move(plan);
  ++measured_;
  return {};
}

Status Gemm::run(const GemmProblem& problem, const GemmOperands& operands, cudaStream_t stream) {
  const auto plan = plans_.find(problem);
  if (plan == plans_.end()) {
    return Error{ErrorCode::kInternal, "matrix product " + words(problem) + " was not prepared"};
  }
  return enqueue(*plan->second, problem, operands, stream);
}

std::string Gemm::header() const {
  return std::string("trainyard-gemm-plans 2 ") + (options_.split_k ? "fast" : "canonical") +
         " cublaslt " + std::to_string(api_.version()) + " on " + options_.machine;
}

void Gemm::read_plans() {
  if (options_.plan_file.empty()) return;
  const Result<std::string> text = read_file(options_.plan_file, kPlanFileBytesMax);
  if (!text) return;
  std::istringstream lines(*text);
  std::string line;
  if (!std::getline(lines, line) || line != header()) return;
  std::map<std::string, Heuristic> kept;
  while (std::getline(lines, line)) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos) return;
    Heuristic h;
    std::istringstream numbers(line.substr(colon + 1));
    numbers >> h.workspace_bytes >> std::hex;
    for (uint64_t& word : h.algorithm.data)
      numbers >> word;
    if (numbers.fail() || h.workspace_bytes > options_.workspace_bytes) return;
    kept[line.substr(0, colon)] = h;
  }
  kept_ = std::move(kept);
}

Status Gemm::keep_plans() {
  if (options_.plan_file.empty() || measured_ == 0) return {};
  std::ostringstream text;
  text << header() << '\n';
  for (const auto& [problem, h] : kept_) {
    text << problem << ": " << std::dec << h.workspace_bytes << std::hex;
    for (const uint64_t word : h.algorithm.data)
      text << ' ' << word;
    text << '\n';
  }
  return write_file_atomic(options_.plan_file, text.str());
}

}  // namespace trainyard::kernels::cuda
