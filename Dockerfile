# vllm-vitals: the daemon and its commands, without compiler, package manager or dashboard tooling.
ARG PYTHON_IMAGE=python:3.13.7-slim-trixie

FROM ${PYTHON_IMAGE} AS build
WORKDIR /src
RUN python -m venv --without-pip /opt/vllm-vitals
COPY pyproject.toml README.md LICENSE ./
COPY exporter exporter
RUN pip --python /opt/vllm-vitals/bin/python install --no-cache-dir .

FROM ${PYTHON_IMAGE}
LABEL org.opencontainers.image.title="vllm-vitals" \
      org.opencontainers.image.description="The monitor for vLLM" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/vllm-vitals /opt/vllm-vitals
ENV PATH=/opt/vllm-vitals/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
EXPOSE 9840
ENTRYPOINT ["vllm-vitals"]
CMD ["run", "--listen", "0.0.0.0:9840", "http://localhost:8000"]
