# vllm-vitals: the daemon and its commands, on what their Python needs of the base image (tools/image_root.py) and nothing
# else. Every package comes from requirements/*.txt, by hash. For several platforms, where nothing here depends on which:
#   docker buildx build --platform linux/amd64,linux/arm64 --build-arg VERSION=0.1.0 -t registry.example/vllm-vitals:0.1.0 --push .
ARG PYTHON_IMAGE=python:3.13.7-slim-trixie

FROM ${PYTHON_IMAGE} AS build
WORKDIR /src
COPY requirements requirements
RUN python -m pip install --no-cache-dir --require-hashes -r requirements/build.txt \
 && python -m venv --without-pip /opt/vllm-vitals \
 && pip --python /opt/vllm-vitals/bin/python install --no-cache-dir --no-compile --require-hashes -r requirements/runtime.txt
COPY pyproject.toml README.md LICENSE ./
COPY exporter exporter
RUN pip wheel --no-cache-dir --no-deps --no-build-isolation --no-index -w /dist . \
 && pip --python /opt/vllm-vitals/bin/python install --no-cache-dir --no-compile --no-deps --no-index /dist/*.whl \
 && python -m compileall -q /opt/vllm-vitals
COPY tools/image_root.py ./
RUN python image_root.py /image /opt/vllm-vitals

FROM scratch
ARG VERSION=dev
ARG REVISION=unknown
ARG CREATED=unknown
LABEL org.opencontainers.image.title="vllm-vitals" \
      org.opencontainers.image.description="The monitor for vLLM" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.url="https://github.com/vllm-vitals/vllm-vitals" \
      org.opencontainers.image.source="https://github.com/vllm-vitals/vllm-vitals" \
      org.opencontainers.image.documentation="https://github.com/vllm-vitals/vllm-vitals/tree/main/docs" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}"
COPY --from=build /image /
COPY --from=build /opt/vllm-vitals /opt/vllm-vitals
ENV PATH=/opt/vllm-vitals/bin:/usr/local/bin:/usr/bin:/bin SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt \
    PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
EXPOSE 9840
STOPSIGNAL SIGTERM
# For the default command; Kubernetes and compose have their own.
HEALTHCHECK --interval=15s --timeout=3s --start-period=10s --retries=4 \
  CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:9840/-/healthy', timeout=2)"]
ENTRYPOINT ["vllm-vitals"]
# Without a URL it ends and says that it needs one: what is localhost here is no server of yours.
CMD ["run", "--listen", "0.0.0.0:9840"]
