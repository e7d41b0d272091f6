# The operator. `docker build -f docker/operator.Dockerfile -t trainyard/operator:0.1.0 .` where a registry has Debian;
# without one, or without Docker, tools/images/build makes the same root file system from this machine's packages and
# takes the last stage below for the image's configuration.
ARG DEBIAN=debian:12-slim
FROM ${DEBIAN} AS build
WORKDIR /src
COPY . .
RUN tools/setup build && cmake --preset release && cmake --build --preset release --target trainyard-operator
ARG SOURCE_DATE_EPOCH=0
RUN tools/images/root operator --binaries build/release/bin --out /image

FROM scratch
ARG VERSION=0.1.0
ARG REVISION=unknown
ARG CREATED=1970-01-01T00:00:00Z
COPY --from=build /image/ /
LABEL org.opencontainers.image.title="trainyard-operator" \
      org.opencontainers.image.description="Runs TrainingJobs on Kubernetes" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}"
USER 65532:65532
EXPOSE 8080 8081 9443
ENTRYPOINT ["/usr/bin/trainyard-operator"]
