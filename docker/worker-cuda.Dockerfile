# The training engine for NVIDIA GPUs: trainyard-agent supervises the pod, beside it trainyard-worker (a rank) and trainyard (the
# command line), both those of CUDA. Built as docker/operator.Dockerfile says.
ARG DEBIAN=debian:12-slim
FROM ${DEBIAN} AS build
WORKDIR /src
COPY . .
RUN tools/setup build cuda && cmake --preset release && \
    cmake --build --preset release --target trainyard-agent trainyard-cuda trainyard-worker-cuda
ARG SOURCE_DATE_EPOCH=0
RUN tools/images/root worker-cuda --binaries build/release/bin --out /image

FROM scratch
ARG VERSION=0.1.0
ARG REVISION=unknown
ARG CREATED=1970-01-01T00:00:00Z
COPY --from=build /image/ /
LABEL org.opencontainers.image.title="trainyard-worker-cuda" \
      org.opencontainers.image.description="Trainyard's training engine for NVIDIA GPUs" \
      org.opencontainers.image.licenses="Apache-2.0 AND LicenseRef-NVIDIA AND BSD-3-Clause" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}"
# NVIDIA's libraries of the image. The driver's come from the node: the container runtime mounts what CAPABILITIES names,
# the device plugin of GKE mounts /usr/local/nvidia.
ENV PATH=/usr/bin LD_LIBRARY_PATH=/usr/lib/nvidia:/usr/local/nvidia/lib64 NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
WORKDIR /tmp
USER 65532:65532
ENTRYPOINT ["/usr/bin/trainyard-agent"]
