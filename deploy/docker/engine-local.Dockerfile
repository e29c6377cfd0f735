# The embedded engine on CPUs or one GPU, for trying; production engines are engine-sglang.
#   docker build -f deploy/docker/engine-local.Dockerfile --build-arg TORCH_INDEX=<index of CPU wheels> -t catalejo/engine-local:0.1.0 .
ARG GATEWAY_IMAGE=catalejo/gateway:0.1.0
FROM ${GATEWAY_IMAGE} AS environment
USER 0
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends python3-venv gcc libc6-dev python3-dev
COPY requirements/app.txt /steps/
# Empty: the default index, whose torch carries CUDA (3 GB). CPU-only wheels make 0.9 GB.
ARG TORCH_INDEX=
RUN python3 -m venv --upgrade --without-pip /opt/catalejo && /usr/bin/python3 -m venv /pip \
 && grep -E '^(torch|transformers|safetensors|xgrammar|huggingface-hub|regex|tqdm|filelock|sympy|mpmath|networkx|ninja|apache-tvm-ffi|triton|nvidia-[a-z0-9-]+|cuda-[a-z0-9-]+|typing-extensions|packaging|fsspec|pyyaml|numpy|jinja2|markupsafe)==' /steps/app.txt \
    | { if [ -n "$TORCH_INDEX" ]; then grep -vE '^(triton|nvidia-|cuda-)'; else cat; fi; } > /steps/engine.txt \
 && /pip/bin/pip --python /opt/catalejo/bin/python install --no-cache-dir --no-deps ${TORCH_INDEX:+--extra-index-url $TORCH_INDEX} -r /steps/engine.txt

FROM ${GATEWAY_IMAGE}
COPY --from=environment /opt/catalejo /opt/catalejo
USER 10001:10001
EXPOSE 30000
CMD ["engine", "--backend=local", "--host=0.0.0.0"]
