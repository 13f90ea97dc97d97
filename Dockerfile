# athanor's image: built by the repository's own scripts, run by a user without privileges.
#   docker build -t athanor .                                      with NVIDIA's images, ready for GPUs
#   docker build --build-arg BASE_BUILD=debian:12 --build-arg BASE_RUNTIME=debian:12-slim -t athanor .   for CPUs alone
#   docker run --rm -v "$PWD:/work" athanor train configs/quickstart.json
#   docker run --rm --gpus all -v "$PWD:/work" athanor train configs/gpt2-124m.json
# Needs no network when it runs. NVIDIA's runtime image brings what a GPU needs beside its driver: cuBLASLt, cuDNN, NVRTC
# and NCCL, of the version that the build had; other places for them are in docs/gpu.md. Not tried with a Docker daemon.
ARG BASE_BUILD=nvidia/cuda:13.0.1-cudnn-devel-ubuntu24.04
ARG BASE_RUNTIME=nvidia/cuda:13.0.1-cudnn-runtime-ubuntu24.04

FROM ${BASE_BUILD} AS build
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
WORKDIR /src
COPY scripts/lib.sh scripts/setup.sh scripts/
RUN scripts/setup.sh && rm -rf /var/lib/apt/lists/*
COPY CMakeLists.txt ./
COPY src src
COPY scripts/cmake scripts/cmake
COPY scripts/build.sh scripts/
# .git is not sent to the builder: the revision comes as an argument and is what `athanor --version` says.
ARG REVISION=unknown
RUN ATHANOR_REVISION="${REVISION}" scripts/build.sh --unity \
    && mkdir -p /out/bin && cp build/athanor /out/bin/ \
    && strip /out/bin/* && /out/bin/athanor --version

FROM ${BASE_RUNTIME}
ARG REVISION=unknown
LABEL org.opencontainers.image.title="athanor" \
      org.opencontainers.image.description="Pretrains GPT-2- and Llama-family language models from token shards" \
      org.opencontainers.image.revision="${REVISION}"
RUN groupadd --gid 10001 athanor && useradd --uid 10001 --gid athanor --create-home athanor
COPY --from=build /out/bin /opt/athanor/bin
COPY configs /opt/athanor/configs
ENV PATH=/opt/athanor/bin:$PATH
USER athanor
WORKDIR /work
ENTRYPOINT ["athanor"]
CMD ["--help"]
