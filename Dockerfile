# Image of `tidewire serve` and `tidewire worker`. docs/how-to/deploy.md describes its use.
#
#   docker build -t tidewire .                                                              PyTorch for the CPU
#   docker build -t tidewire --build-arg TORCH=cu130 .                                      PyTorch for CUDA 13.0
#   docker build -t tidewire --build-arg EXTRAS=server,postgres .                           without text generation
#
# The wheels of PyTorch contain the libraries of CUDA, so the base image is the same. The host needs NVIDIA's driver and its
# container toolkit.
FROM python:3.11-slim

ARG EXTRAS=server,engine,postgres
# Name of an index of PyTorch's wheels: cpu, or cu and the version of CUDA.
ARG TORCH=cpu

WORKDIR /source
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
COPY spec spec
RUN pip install --no-cache-dir -c constraints.txt --extra-index-url "https://download.pytorch.org/whl/${TORCH}" ".[${EXTRAS}]" \
    && useradd --create-home tidewire

USER tidewire
WORKDIR /app
EXPOSE 8000
# A worker has no port: turn this check off in its container.
HEALTHCHECK --interval=5s --timeout=3s --start-period=60s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/readyz', timeout=2)"]
# SIGTERM lets jobs end for up to `shutdown_timeout` (10 s). Docker kills a container after 10 s, so pass `docker stop -t 30`.
ENTRYPOINT ["tidewire"]
CMD ["serve", "--host", "0.0.0.0"]
