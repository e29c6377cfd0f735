# The gateway, the helm test, the load test and the weight download; no torch, under 500 MB.
#   docker build -f deploy/docker/gateway.Dockerfile -t catalejo/gateway:0.1.0 .
# Releases pin both bases: --build-arg BASE_IMAGE=debian:bookworm-slim@sha256:... (deploy/docker/build.sh demands it).
ARG RUST_IMAGE=rust:1.89-slim-bookworm
ARG BASE_IMAGE=debian:bookworm-slim
# 0: no video decoder and no libav, for images that are published (docs/deploy.md, third-party notices).
ARG VIDEO=1

FROM ${RUST_IMAGE} AS wheel
COPY deploy/docker/steps/build-packages.sh /steps/
RUN sh /steps/build-packages.sh
COPY deploy/docker/steps/build-wheel.sh /steps/
WORKDIR /src
COPY . .
ARG VIDEO
RUN VIDEO=${VIDEO} sh /steps/build-wheel.sh /wheels

FROM ${BASE_IMAGE} AS runtime
COPY deploy/docker/steps/runtime-packages.sh /steps/
ARG VIDEO
RUN VIDEO=${VIDEO} sh /steps/runtime-packages.sh

FROM runtime AS environment
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends python3-venv
COPY deploy/docker/steps/install.sh deploy/docker/gateway.lock /steps/
COPY --from=wheel /wheels /wheels
RUN sh /steps/install.sh /steps/gateway.lock /wheels

FROM runtime
COPY --from=environment /opt/catalejo /opt/catalejo
ENV PATH=/opt/catalejo/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp
# A number, so that Kubernetes can see that it is not root.
USER 10001:10001
EXPOSE 8000
STOPSIGNAL SIGTERM
ENTRYPOINT ["catalejo"]
CMD ["gateway", "--config", "/etc/catalejo/catalejo.yaml"]
