# Tutti with all that a Ray cluster needs of it: for `docker run`, for the pods of deploy/kuberay, and as MLflow's server.
#
#   docker build -t tutti .                                  # for NVIDIA GPUs: torch's wheels bring CUDA
#   docker build -t tutti --build-arg TORCH_INDEX=URL .      # for CPUs: the index of CPU wheels that pytorch.org names
#   docker run --rm --shm-size 2g tutti tutti demo
#   docker run --rm --shm-size 2g --gpus all -v "$PWD/studies:/studies" -v "$PWD:/files:ro" tutti tutti tune /files/study.yaml

ARG PYTHON=3.12
FROM python:${PYTHON}-slim-bookworm
ARG EXTRAS=excel,postgres,pretraining,qlora,text
ARG TORCH_INDEX=""

# KubeRay asks a pod for its health with wget; Triton, which torch.compile uses, needs a C compiler
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev wget \
    && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home --uid 1000 tutti && install -d -o tutti -g tutti /studies

WORKDIR /opt/tutti
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY platform platform
RUN pip install --no-cache-dir -c constraints.txt ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} ".[${EXTRAS}]"

USER tutti
WORKDIR /home/tutti
ENV TUTTI_STUDIES=/studies
# A driver that computes for a minute is healthy, and Kubernetes asks Ray itself.
HEALTHCHECK NONE
CMD ["tutti", "--help"]
