# unfed in a container. NOT BUILT YET: nobody has run `docker build` on this file; say what you find.
# Checked without Docker (2026-11-16, x86-64, Python 3.11, no image): the files that it copies build a wheel with all its
# data, and pip resolves "unfed[flower,trust]" from them against constraints.txt. Not checked: apt's lines, useradd, Python 3.12 there.
#
#   docker build -t unfed .                                                                   CPU
#   docker build -t unfed --build-arg BASE=nvidia/cuda:12.8.1-runtime-ubuntu24.04 \
#                --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu128 .             NVIDIA GPU
#   docker run --rm -v "$PWD/runs:/work/runs" unfed demo                                      (--gpus all for a GPU)
ARG BASE=ubuntu:24.04
FROM ${BASE}

# Ubuntu 24.04 has Python 3.12; an environment of its own, because the system's belongs to apt.
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends python3 python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && python3 -m venv /opt/unfed
ENV PATH=/opt/unfed/bin:$PATH PYTHONUNBUFFERED=1

ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ARG EXTRAS=flower,trust
COPY pyproject.toml constraints.txt README.md LICENSE /src/
COPY src /src/src
RUN pip install --no-cache-dir --extra-index-url ${TORCH_INDEX} -c /src/constraints.txt "/src[${EXTRAS}]"

# Runs are written by whoever runs the container, into the folder that is mounted.
RUN useradd --create-home unfed && mkdir /work && chown unfed /work
USER unfed
WORKDIR /work
ENTRYPOINT ["unfed"]
CMD ["--help"]
