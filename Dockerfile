# An image with the runner and the versions of constraints.txt. The folder /work is the current directory of commands.
#
#   CPUs:         docker build -t mesh-runner .
#   NVIDIA GPUs:  docker build -t mesh-runner:cuda --build-arg EXTRAS=cuda .
#
#   docker run --rm -v "$PWD:/work" mesh-runner runner mesh=single dataset=digits
#   docker run --rm --gpus all -v "$PWD:/work" mesh-runner:cuda runner engine=jax mesh=data dataset=digits
#
# The CUDA libraries are Python wheels, so both images have the same base; `--gpus` needs NVIDIA's container toolkit.
FROM python:3.12-slim

ARG EXTRAS=jax

WORKDIR /opt/mesh-runner
COPY pyproject.toml hatch_build.py constraints.txt README.md LICENSE ./
COPY conf ./conf
COPY hydra_plugins ./hydra_plugins
COPY runner ./runner
RUN python -m pip install --no-cache-dir -c constraints.txt ".[${EXTRAS}]"

# Runs write into the current directory, as a user without privileges.
RUN useradd --create-home runner && mkdir /work && chown runner /work
USER runner
WORKDIR /work
ENTRYPOINT ["python", "-m"]
CMD ["runner", "--help"]
