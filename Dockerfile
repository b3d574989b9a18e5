# Two images from one file: `make images` builds both.
#
# BASE_IMAGE            any Debian-like image with python3 (3.11 or newer) and its venv module
# TRAINER_REQUIREMENTS  requirements/trainer.txt for CPU, requirements/trainer-cuda.txt for GPUs
#
# pip takes its configuration from the secrets pip.conf and ca.crt where they are given, so no
# address or certificate of the place of the build stays in an image or in its history:
#
#   docker build --secret id=pip.conf,src=/etc/pip.conf …
#
# Stages stand in the order in which they are needed: builders that cannot skip a stage then do
# no work for the trainer when the operator is asked for.
ARG BASE_IMAGE=python:3.11-slim

# What all stages that install have in common. pip lives beside the environment that is shipped,
# never in it; the trainer's image has it there for the requirements of jobs.
FROM ${BASE_IMAGE} AS builder
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_NO_COMPILE=1 \
    PIP_PROGRESS_BAR=off \
    PIP_ROOT_USER_ACTION=ignore
RUN python3 -m venv /opt/pip \
 && python3 -m venv --without-pip /opt/tfparallel
WORKDIR /src

FROM builder AS build-tools
COPY requirements/build.txt requirements/
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    --mount=type=secret,id=ca.crt,target=/run/secrets/ca.crt \
    /opt/pip/bin/pip install --require-hashes -r requirements/build.txt

# Our own code goes to /stage as a layer of its own: a changed line does not copy requirements.
FROM build-tools AS trainer-code
COPY trainer trainer
RUN /opt/pip/bin/pip wheel --no-deps --no-build-isolation --wheel-dir wheels ./trainer \
 && /opt/pip/bin/pip --python /opt/tfparallel/bin/python \
        install --no-index --no-deps --root /stage wheels/*.whl \
 && python3 -m compileall -q --invalidation-mode unchecked-hash -s /stage /stage

FROM trainer-code AS operator-code
COPY operator operator
RUN /opt/pip/bin/pip wheel --no-deps --no-build-isolation --wheel-dir wheels ./operator \
 && /opt/pip/bin/pip --python /opt/tfparallel/bin/python \
        install --no-index --no-deps --root /stage wheels/tfparallel_operator-*.whl \
 && python3 -m compileall -q --invalidation-mode unchecked-hash -s /stage /stage

FROM builder AS operator-requirements
COPY requirements/operator.txt requirements/
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    --mount=type=secret,id=ca.crt,target=/run/secrets/ca.crt \
    /opt/pip/bin/pip --python /opt/tfparallel/bin/python \
        install --require-hashes --only-binary :all: -r requirements/operator.txt \
 && python3 -m compileall -q --invalidation-mode unchecked-hash /opt/tfparallel

# What both images run on: no pip of the system's, a user without rights, a home that it can write to.
FROM ${BASE_IMAGE} AS runtime
RUN rm -rf /usr/local/lib/python3*/site-packages/* /usr/local/lib/python3*/ensurepip \
        /usr/local/bin/pip* /usr/share/python-wheels \
 && echo 'tfparallel:x:65532:65532::/home/tfparallel:/usr/sbin/nologin' >> /etc/passwd \
 && echo 'tfparallel:x:65532:' >> /etc/group \
 && install --directory --owner=65532 --group=65532 /home/tfparallel
ENV HOME=/home/tfparallel \
    PATH=/opt/tfparallel/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
ARG VERSION=unknown
LABEL org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
USER 65532:65532

FROM runtime AS operator
LABEL org.opencontainers.image.title="tfparallel-operator" \
      org.opencontainers.image.description="Runs TFParallelJobs on Kubernetes"
COPY --from=operator-requirements /opt/tfparallel /opt/tfparallel
COPY --from=operator-code /stage /
ENTRYPOINT ["tfparallel-operator"]

# Headers, libclang (only TensorFlow's own build uses it) and tests are a third of the size.
FROM builder AS trainer-requirements
ARG TRAINER_REQUIREMENTS=requirements/trainer.txt
COPY ${TRAINER_REQUIREMENTS} requirements/examples.txt requirements/
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    --mount=type=secret,id=ca.crt,target=/run/secrets/ca.crt \
    /opt/pip/bin/pip --python /opt/tfparallel/bin/python \
        install --require-hashes --only-binary :all: -r ${TRAINER_REQUIREMENTS} \
 && /opt/pip/bin/pip --python /opt/tfparallel/bin/python \
        install --require-hashes --only-binary :all: --no-deps -r requirements/examples.txt \
 && cd /opt/tfparallel/lib/python3*/site-packages \
 && rm -rf tensorflow/include clang libclang* numpy/_core/include \
 && find sklearn scipy numpy -type d -name tests -prune -exec rm -rf {} + \
 && python3 -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/tfparallel

# A user's own image starts FROM this one and copies its files to /workspace.
FROM runtime AS trainer
LABEL org.opencontainers.image.title="tfparallel-trainer" \
      org.opencontainers.image.description="Trains Keras 3 models on many devices and processes"
ENV TF_CPP_MIN_LOG_LEVEL=1
USER 0:0
RUN install --directory --owner=65532 --group=65532 /workspace /output
USER 65532:65532
COPY --from=builder /opt/pip /opt/pip
COPY --from=trainer-requirements /opt/tfparallel /opt/tfparallel
COPY --from=trainer-code /stage /
WORKDIR /workspace
CMD ["python", "-m", "tfparallel_trainer"]
