# The embedded engine on CPUs or one GPU, for trying; production engines are engine-sglang.
#   docker build -f deploy/docker/engine-local.Dockerfile --build-arg TORCH_INDEX=<index of CPU wheels> -t catalejo/engine-local:0.1.0 .
ARG GATEWAY_IMAGE=catalejo/gateway:0.1.0
FROM ${GATEWAY_IMAGE} AS environment
USER 0
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends python3-venv
COPY requirements/app.txt /steps/
# Empty: the default index, whose torch carries CUDA (3 GB). CPU-only wheels make 0.9 GB.
ARG TORCH_INDEX=
RUN python3 -m venv /pip \
 && /pip/bin/pip --python /opt/catalejo/bin/python install --no-cache-dir --no-compile -c /steps/app.txt \
      ${TORCH_INDEX:+--extra-index-url $TORCH_INDEX} torch transformers safetensors xgrammar

FROM ${GATEWAY_IMAGE}
COPY --from=environment /opt/catalejo /opt/catalejo
USER 10001:10001
EXPOSE 30000
CMD ["engine", "--backend=local", "--host=0.0.0.0"]
