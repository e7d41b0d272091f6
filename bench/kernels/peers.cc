#include "bench/kernels/peers.h"

#ifdef TRAINYARD_HAVE_OPENBLAS
#include <cblas.h>
#endif
#ifdef TRAINYARD_HAVE_ONEDNN
#include <omp.h>
#include <oneapi/dnnl/dnnl.hpp>
#endif

namespace trainyard::bench {

#ifdef TRAINYARD_HAVE_OPENBLAS
std::function<void()> openblas_product(const PeerProduct& p) {
  if (p.type != DType::kFloat32) return {};
  openblas_set_num_threads(p.threads);
  return [p] {
    const auto m = static_cast<blasint>(p.m);
    const auto n = static_cast<blasint>(p.n);
    const auto k = static_cast<blasint>(p.k);
    cblas_sgemm(CblasRowMajor, p.transpose_a ? CblasTrans : CblasNoTrans,
                p.transpose_b ? CblasTrans : CblasNoTrans, m, n, k, 1.0F,
                static_cast<const float*>(p.a), p.transpose_a ? m : k,
                static_cast<const float*>(p.b), p.transpose_b ? k : n, 0.0F, p.c, n);
  };
}
#else
std::function<void()> openblas_product(const PeerProduct&) { return {}; }
#endif

#ifdef TRAINYARD_HAVE_ONEDNN
std::function<void()> onednn_product(const PeerProduct& p) {
  using dnnl::memory;
  omp_set_num_threads(p.threads);
  const auto type = p.type == DType::kFloat32 ? memory::data_type::f32 : memory::data_type::bf16;
  using Tag = memory::format_tag;
  const memory::desc a({p.m, p.k}, type, p.transpose_a ? Tag::ba : Tag::ab);
  const memory::desc b({p.k, p.n}, type, p.transpose_b ? Tag::ba : Tag::ab);
  const memory::desc c({p.m, p.n}, memory::data_type::f32, Tag::ab);
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
#if DNNL_VERSION_MAJOR >= 3
  const dnnl::matmul::primitive_desc description(engine, a, b, c);
#else
  const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(a, b, c), engine);
#endif
  const memory memory_a(a, engine, const_cast<void*>(p.a));
  const memory memory_b(b, engine, const_cast<void*>(p.b));
  const memory memory_c(c, engine, p.c);
  return [primitive = dnnl::matmul(description), stream, memory_a, memory_b, memory_c]() mutable {
    primitive.execute(
        stream, {{DNNL_ARG_SRC, memory_a}, {DNNL_ARG_WEIGHTS, memory_b}, {DNNL_ARG_DST, memory_c}});
    stream.wait();
  };
}
#else
std::function<void()> onednn_product(const PeerProduct&) { return {}; }
#endif

}  // namespace trainyard::bench
