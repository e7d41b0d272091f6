# The training engine for CPUs: trainyard-agent supervises the pod, beside it trainyard-worker (a rank) and trainyard (the
# command line). Built as docker/operator.Dockerfile says.
ARG DEBIAN=debian:12-slim
FROM ${DEBIAN} AS build
WORKDIR /src
COPY . .
RUN tools/setup build && cmake --preset release && \
    cmake --build --preset release --target trainyard trainyard-agent trainyard-worker
ARG SOURCE_DATE_EPOCH=0
RUN tools/images/root worker-cpu --binaries build/release/bin --out /image

FROM scratch
ARG VERSION=0.1.0
ARG REVISION=unknown
ARG CREATED=1970-01-01T00:00:00Z
COPY --from=build /image/ /
LABEL org.opencontainers.image.title="trainyard-worker-cpu" \
      org.opencontainers.image.description="Trainyard's training engine for CPUs" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}"
ENV PATH=/usr/bin
WORKDIR /tmp
USER 65532:65532
ENTRYPOINT ["/usr/bin/trainyard-agent"]
