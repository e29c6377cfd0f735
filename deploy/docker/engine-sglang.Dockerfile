# The production engine: SGLang with our plugin. The base has torch and CUDA; our wheel adds the plugin, the wire format and the kernels.
#   docker build -f deploy/docker/engine-sglang.Dockerfile -t catalejo/engine-sglang:0.1.0 .
# Releases pin it: --build-arg SGLANG_IMAGE=lmsysorg/sglang:v0.5.23@sha256:...
ARG SGLANG_IMAGE=lmsysorg/sglang:v0.5.23
ARG GATEWAY_IMAGE=catalejo/gateway:0.1.0
ARG RUST_IMAGE=rust:1.89-slim-bookworm

FROM ${RUST_IMAGE} AS wheel
COPY deploy/docker/steps/build-packages.sh /steps/
RUN sh /steps/build-packages.sh
COPY deploy/docker/steps/build-wheel.sh /steps/
WORKDIR /src
COPY . .
RUN sh /steps/build-wheel.sh /wheels

FROM ${SGLANG_IMAGE}
USER 0
COPY --from=wheel /wheels /wheels
# Only what the wheel itself needs and the base lacks; the base's own packages stay as SGLang tested them.
RUN python3 -m pip install --no-cache-dir --no-deps /wheels/catalejo-*.whl \
 && python3 -m pip install --no-cache-dir 'blake3>=1.0,<2' 'typer>=0.20,<1' 'pydantic-settings>=2.9,<3' 'msgspec>=0.19,<1'
# The Hopper kernels ahead of time, beside their sources: the root is read-only when it runs. Needs the base's nvcc, no GPU.
RUN python3 -m engine.msa.kernels.build
ENV PYTHONUNBUFFERED=1 HOME=/cache/home
USER 10001:10001
EXPOSE 30000
ENTRYPOINT ["catalejo"]
CMD ["engine", "--backend=sglang", "--host=0.0.0.0"]
