#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "kernels/simt/runtime.h"

namespace trainyard::engine {

/// Parts of a step that enqueue the same in every step, but for the contents of what is uploaded.
/// The first two times a part runs as it is: it makes its plans and tables then, and is measured.
/// The third time it is captured as a CUDA graph. From then on only its uploads are read, into the
/// pinned memory that the graph copies from, and the graph is launched at the part's end: 1 us of
/// host time for each kernel in place of 4.
///
/// One part is under way at a time. A part's uploads are read by the GPU before the host begins the
/// part again, which the step's one wait sees to. A part whose uploads do not fit is never
/// captured.
class CudaRepeats {
 public:
  static constexpr int kParts = 2;

  /// Pinned memory of the first part's uploads; the second has none. Not owned.
  CudaRepeats(cudaStream_t stream, std::byte* memory, size_t bytes)
      : stream_(stream), memory_(memory), bytes_(bytes) {}
  /// Where the device has not failed, nothing launched is under way any more.
  ~CudaRepeats();
  CudaRepeats(const CudaRepeats&) = delete;
  CudaRepeats& operator=(const CudaRepeats&) = delete;

  /// `key` tells all apart that the part enqueues, by shapes and addresses: with another one it
  /// starts from the beginning.
  cudaError_t begin(int part, uint64_t key);
  /// Within a part: false where nothing is enqueued but uploads are read.
  bool enqueues() const { return mode_ != Mode::kRepeated; }
  /// Within a part: whether uploads go through take().
  bool takes_uploads() const { return mode_ == Mode::kCaptured || mode_ == Mode::kRepeated; }
  void measure(size_t bytes);
  /// Where to put an upload of so many bytes; null: it is not the upload that was captured here.
  std::byte* take(size_t bytes);
  /// Ends a part, and launches what was captured. `is_whole`: false where it was cut short, and
  /// nothing of it is to run.
  cudaError_t end(bool is_whole);
  bool is_open() const { return open_ >= 0; }
  /// -1: none.
  int open_part() const { return open_; }
  /// Within a part that takes_uploads(): the event of the next moment of it, which the part's graph
  /// records whenever it is launched. Null: another number of them was captured.
  cudaError_t mark(cudaEvent_t& event);
  /// Why parts run as they are, for people; empty where they do not, or may not any more.
  std::string_view why_plain() const;
  /// After end() without an error: whether the uploads of the part were other ones than captured.
  bool has_strayed() const { return has_strayed_; }

 private:
  enum class Mode { kPlain, kMeasured, kCaptured, kRepeated };
  struct Part {
    uint64_t key = 0;
    int runs = 0;
    size_t measured = 0;
    cudaGraphExec_t graph = nullptr;
    std::vector<size_t> uploads;  ///< bytes of each, in memory one after the other
    std::vector<cudaEvent_t> marks;
  };
  /// So many changes of its key, one after another, and a part is not thought to repeat.
  static constexpr int kChanges = 3;
  static size_t padded(size_t bytes) { return (bytes + 63) / 64 * 64; }
  void forget(Part& part);

  cudaStream_t stream_;
  std::byte* memory_;
  size_t bytes_;
  std::array<Part, kParts> parts_;
  int open_ = -1;
  Mode mode_ = Mode::kPlain;
  size_t next_ = 0;  ///< upload of the part
  size_t used_ = 0;
  size_t next_mark_ = 0;
  bool has_strayed_ = false;
  bool is_too_large_ = false;  ///< the first part's uploads, when it last began
  int changes_ = 0;            ///< of the first part's key since it was last launched as a graph
};

}  // namespace trainyard::engine
